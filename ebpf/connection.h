/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Which connections are wanted, what is remembered of each, and how an event is told. The functions
 * that are traced hold the socket's lock, so a connection's record has one writer at a time.
 */
#pragma once

#include "event.h"
#include "kernel.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
/* Connections that are remembered; beyond, the ones least recently seen are forgotten. */
#define CONNECTIONS_MAX 16384

/* Set by the loader. */
const volatile u32 wanted_netns = 0; /* inode of the network namespace */
const volatile u32 wanted_port = 0; /* of either end; 0: any */
const volatile u64 probe_interval_ns = 0; /* per connection, at least, between two PROBEs */

struct connection {
	u32 number[KINDS];
	u32 total_retrans; /* as the latest RETRANSMIT told it */
	u16 window; /* of the latest segment, as in its header */
	u64 probe_ns; /* the latest PROBE that was told */
	u64 wait_ns; /* since when memory is waited for; 0: it is not */
};

struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, CONNECTIONS_MAX);
	TYPE(key, u64);
	TYPE(value, struct connection);
} connections SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	NUMBER(max_entries, 1 << 20); /* the loader may ask for another size */
} events SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u32);
} lost SEC(".maps");

INLINE int is_wanted(struct sock *sk)
{
	if (READ(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	u16 remote = __builtin_bswap16(READ(sk, __sk_common.skc_dport));
	if (wanted_port && wanted_port != READ(sk, __sk_common.skc_num) && wanted_port != remote)
		return 0;
	struct net *net = READ(sk, __sk_common.skc_net.net);
	return READ(net, ns.inum) == wanted_netns;
}

/* The record of a wanted connection; none for others. */
INLINE struct connection *connection_of(struct sock *sk, u64 *cookie)
{
	if (!is_wanted(sk))
		return 0;
	*cookie = bpf_get_socket_cookie(sk);
	struct connection *known = bpf_map_lookup_elem(&connections, cookie);
	if (known)
		return known;
	struct connection fresh = {};
	bpf_map_update_elem(&connections, cookie, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&connections, cookie);
}

INLINE void fill_addresses(struct event *event, struct sock *sk)
{
	u16 family = READ(sk, __sk_common.skc_family);
	event->family = family;
	event->local_port = READ(sk, __sk_common.skc_num);
	event->remote_port = __builtin_bswap16(READ(sk, __sk_common.skc_dport));
	__builtin_memset(event->local, 0, sizeof(event->local));
	__builtin_memset(event->remote, 0, sizeof(event->remote));
	if (family == AF_INET6) {
		bpf_probe_read_kernel(event->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_probe_read_kernel(event->remote, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		bpf_probe_read_kernel(event->local, 4, &sk->__sk_common.skc_rcv_saddr);
		bpf_probe_read_kernel(event->remote, 4, &sk->__sk_common.skc_daddr);
	}
}

INLINE void fill_state(struct event *event, struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	event->ca_state = READ_BITS((struct inet_connection_sock *)sk, icsk_ca_state);
	event->cwnd_segments = READ(tcp, snd_cwnd);
	event->ssthresh_segments = READ(tcp, snd_ssthresh);
	event->rtt_us = READ(tcp, srtt_us) >> 3;
	event->in_flight_bytes = READ(tcp, snd_nxt) - READ(tcp, snd_una);
	event->send_window_bytes = READ(tcp, snd_wnd);
	event->mss_bytes = READ(tcp, mss_cache);
	event->send_queued_bytes = READ(sk, sk_wmem_queued);
	event->send_buffer_bytes = READ(sk, sk_sndbuf);
	event->total_retrans_segments = READ(tcp, total_retrans);
}

/* What an event has besides what every event has. */
struct particulars {
	u8 flags;
	u32 segments;
	u32 bytes;
	u32 wait_us;
};

/* Kinds that come with every acknowledgement leave half of the ring to the others. */
INLINE int has_room(enum kind kind)
{
	if (kind != PROBE && kind != DUPLICATE_ACK && kind != SACK)
		return 1;
	u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	return waiting < bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) / 2;
}

INLINE void tell(struct sock *sk, struct connection *connection, u64 cookie, u64 at_ns,
		 enum kind kind, struct particulars more)
{
	u32 zero = 0;
	u32 *lost_count = bpf_map_lookup_elem(&lost, &zero);
	if (!lost_count)
		return;
	struct event *event = 0;
	if (has_room(kind))
		event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(lost_count, 1);
		return;
	}
	event->at_ns = at_ns;
	event->cookie = cookie;
	event->kind = kind;
	event->number = connection->number[kind];
	event->lost = *lost_count;
	event->flags = more.flags;
	event->segments = more.segments;
	event->bytes = more.bytes;
	event->wait_us = more.wait_us;
	fill_addresses(event, sk);
	fill_state(event, sk);
	bpf_ringbuf_submit(event, 0);
}

/* Counts an event and tells it. */
INLINE void happened(struct sock *sk, struct connection *connection, u64 cookie, enum kind kind,
		     struct particulars more)
{
	connection->number[kind] += 1;
	tell(sk, connection, cookie, bpf_ktime_get_ns(), kind, more);
}
