"""The exact test pass of a trained model, and its predictions."""
