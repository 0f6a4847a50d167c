//! Initiator side of full-feature phase: tasks over the connections of a session (RFC 7143 §4).
