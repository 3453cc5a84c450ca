"""What becomes of drafts: acceptance, tokens per pass, ranks."""
