"""From raw text and class names to text features."""
