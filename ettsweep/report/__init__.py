"""What a sweep found, for people: tables, figures, and one HTML page."""
