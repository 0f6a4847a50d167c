/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What the programs tell, one fixed-size record per event. crates/tcpmon/src/events/event.rs reads the
 * same layout, from the ring buffer and from recordings: add at the end, change nothing.
 */
#pragma once

#include "bpf.h"

enum kind {
	PROBE = 1, /* a segment has arrived: how the connection stands */
	RETRANSMIT, /* a segment was sent again */
	DUPLICATE_ACK, /* RFC 5681 section 2 */
	SACK, /* an acknowledgement with SACK blocks (RFC 2018) */
	RTO, /* the retransmission timer has expired (RFC 6298) */
	SEND_WAIT, /* a sender has waited for memory of its send buffer */
	LOCAL_CONGESTION, /* the own device had no room: the congestion window is reduced */
	KINDS,
};

enum flags {
	DSACK = 1, /* the first SACK block reports a duplicate (RFC 2883) */
};

struct event {
	u64 at_ns; /* CLOCK_MONOTONIC */
	u64 cookie; /* of the socket */
	u8 kind;
	u8 ca_state; /* 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss */
	u8 flags;
	u8 family; /* AF_INET, AF_INET6 */
	u16 local_port;
	u16 remote_port;
	u8 local[16]; /* network byte order; IPv4 in the first four */
	u8 remote[16];
	u32 number; /* events of this kind on this connection, those not told included */
	u32 lost; /* events of any kind that found no room in the ring, until now */
	u32 cwnd_segments;
	u32 ssthresh_segments;
	u32 rtt_us;
	u32 in_flight_bytes; /* sent and not acknowledged */
	u32 send_window_bytes;
	u32 mss_bytes;
	u32 send_queued_bytes; /* sk_wmem_queued */
	u32 send_buffer_bytes; /* sk_sndbuf */
	u32 segments; /* sent again, acknowledged in duplicate, or SACK blocks */
	u32 bytes; /* of payload sent again, or within the SACK blocks */
	u32 total_retrans_segments;
	u32 wait_us; /* SEND_WAIT: how long */
};

_Static_assert(sizeof(struct event) == 112, "event.rs reads 112 bytes");
