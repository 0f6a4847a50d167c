//! Target side of full-feature phase: sessions, commands, R2T and Data-In (RFC 7143 §4).
