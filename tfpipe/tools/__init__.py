"""Commands that look and measure."""
