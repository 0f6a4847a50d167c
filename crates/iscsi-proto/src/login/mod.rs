//! Login of both roles (RFC 7143 §6.3).
