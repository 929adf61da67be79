"""What happens inside attention: scores, weights, gradients, and who influences whom."""
