"""Results that must stay as they are while the code around them moves."""
