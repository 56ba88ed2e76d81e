"""The stream of an endpoint: its session from router to router, the frames that leave, the results that come."""
