"""The whole mesh on virtual time: real services and real clients, an in-memory network, and one seed for all of it.

Purpose: faults that hurt, by the thousand, each of which can be repeated. The history checker judges.
"""
