"""What clients and services share of calls: ids, payloads, traces, deadlines, slot tokens. Pure: cores import it."""
