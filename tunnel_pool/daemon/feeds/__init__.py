"""Feeds (RSS 2.0, Atom): lists of torrents on the web, read through the tunnels, and rules by which torrents are added.

A feed is written by strangers. It says what is offered, and its owner's rules say what is taken. Nothing in it makes
the daemon ask anybody directly (outside/urls.py).
"""
