"""What happens inside of attention: scores, weights, gradients, and who influences whom."""
