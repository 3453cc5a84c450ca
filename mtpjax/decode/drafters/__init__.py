"""Where drafts come from."""
