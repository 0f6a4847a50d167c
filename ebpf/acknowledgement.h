/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * What an arriving segment says of losses: duplicate acknowledgements and SACK blocks, read from its
 * header, so that no access to TCP's own functions is needed.
 */
#pragma once

#include "connection.h"

#define TCP_HEADER_BYTES 20
#define OPTIONS_BYTES_MAX 40
/* Linux sends at most five in an acknowledgement; padding of more is not followed. */
#define OPTIONS_MAX 24
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define SACK_BLOCKS_MAX 4
#define FLAG_FIN 0x01
#define FLAG_SYN 0x02
#define FLAG_RST 0x04
#define FLAG_ACK 0x10

struct scratch {
	u8 options[128]; /* three times what there is, so that any 6-bit index and a block fit */
	u32 step;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct scratch);
} scratches SEC(".maps");

/* Reads SACK blocks at an option; `ack` tells a report of a duplicate (RFC 2883 section 4). */
INLINE struct particulars sack_at(const struct scratch *scratch, u32 at, u32 ack)
{
	struct particulars sack = {};
	u32 blocks = (scratch->options[(at + 1) & 63] - 2) / 8;
	for (u32 index = 0; index < SACK_BLOCKS_MAX; index++) {
		if (index >= blocks)
			break;
		const u8 *block = &scratch->options[(at & 63) + 2 + 8 * index];
		u32 left = big_endian_32(block), right = big_endian_32(block + 4);
		if (index == 0 && (s32)(right - ack) <= 0)
			sack.flags |= DSACK;
		else
			sack.bytes += right - left;
		sack.segments += 1;
	}
	return sack;
}

/* Looks through the options (RFC 9293 section 3.1); no segments: there is no SACK. */
INLINE struct particulars find_sack(const u8 *header, u32 options_bytes, u32 ack)
{
	struct particulars none = {};
	u32 zero = 0;
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
	if (!scratch)
		return none;
	bpf_probe_read_kernel(scratch->options, OPTIONS_BYTES_MAX, header + TCP_HEADER_BYTES);
	u32 at = 0;
	for (int count = 0; count < OPTIONS_MAX; count++) {
		at &= 63;
		if (at >= options_bytes)
			break;
		u8 kind = scratch->options[at];
		if (kind == OPTION_END)
			break;
		if (kind == OPTION_SACK)
			return sack_at(scratch, at, ack);
		u32 length = kind == OPTION_NOP ? 1 : scratch->options[at + 1];
		if (length == 0)
			break;
		/* Through memory, so that the verifier forgets which way was taken: it would follow
		 * every sequence of options by itself. */
		*(volatile u32 *)&scratch->step = length;
		at += *(volatile u32 *)&scratch->step;
	}
	return none;
}

/* Acknowledgements that the backlog has joined into one count each. */
INLINE u32 joined(struct sk_buff *skb)
{
	struct skb_shared_info *shared = (void *)(READ(skb, head) + READ(skb, end));
	u16 segments = READ(shared, gso_segs);
	return segments > 1 ? segments : 1;
}

INLINE void look_at_acknowledgement(struct sock *sk, struct sk_buff *skb,
				    struct connection *connection, u64 cookie)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	u8 header[TCP_HEADER_BYTES] = {};
	const u8 *data = READ(skb, data);
	bpf_probe_read_kernel(header, sizeof(header), data);
	u32 header_bytes = (header[12] >> 4) * 4;
	u16 window = (u16)(header[14] << 8 | header[15]);
	u16 window_before = connection->window;
	connection->window = window;
	if ((header[13] & (FLAG_ACK | FLAG_SYN | FLAG_FIN | FLAG_RST)) != FLAG_ACK)
		return;
	u32 ack = big_endian_32(&header[8]);
	if (header_bytes > TCP_HEADER_BYTES) {
		struct particulars sack = find_sack(data, header_bytes - TCP_HEADER_BYTES, ack);
		if (sack.segments)
			happened(sk, connection, cookie, SACK, sack);
	}
	/* RFC 5681 section 2: (a) data are outstanding, (b) the segment has none, (c) neither SYN nor
	 * FIN, (d) the number is the greatest one received, (e) the window is the same. */
	if (ack == READ(tcp, snd_una) && READ(tcp, packets_out) && window == window_before &&
	    READ(skb, len) <= header_bytes) {
		struct particulars duplicate = { .segments = joined(skb) };
		happened(sk, connection, cookie, DUPLICATE_ACK, duplicate);
	}
}
