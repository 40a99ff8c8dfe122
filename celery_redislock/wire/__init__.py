"""Reach a server: connections, requests, answers, time. Knows no lock."""
