"""The border: who sends a request, and whether its route is for them. What it does is judged at the door."""
