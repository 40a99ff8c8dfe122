"""The page about the locks of an app, as a WSGI application, and a server for it."""
