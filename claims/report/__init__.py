"""What became of the claims, for people: one HTML file, Markdown, pictures, a site."""
