"""`mtpjax bench`: memory of the loss, speed of training and decoding."""
