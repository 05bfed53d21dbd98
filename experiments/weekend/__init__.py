"""The papers' tables at paper scale, in the order of published evidence per hour, as one command."""
