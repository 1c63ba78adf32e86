"""The ground of the overlay: all of its rooms build on these modules, which build on none of them."""
