"""The engine behind every front end: starts and supervises children, keeps the session, drives diagnosis and trials."""
