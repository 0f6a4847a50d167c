/* SPDX-License-Identifier: MIT OR GPL-2.0-only
 *
 * Kernel types, cut down to the fields that are used. Offsets are not those of any kernel: the loader
 * finds each field by its name in the running kernel's BTF (CO-RE).
 */
#pragma once

#include "bpf.h"

struct in6_addr {
	u8 bytes[16];
};

struct ns_common {
	u32 inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct sock_common {
	u16 skc_family;
	u16 skc_dport; /* network byte order */
	u16 skc_num; /* host byte order */
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	possible_net_t skc_net;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
	s32 sk_sndbuf;
	s32 sk_wmem_queued;
} KERNEL;

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
} KERNEL;

struct tcp_sock {
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 srtt_us; /* eight times the smoothed round-trip time */
	u32 snd_una;
	u32 snd_nxt;
	u32 snd_wnd;
	u32 mss_cache;
	u32 packets_out;
	u32 total_retrans;
} KERNEL;

struct sk_buff {
	u32 len;
	u32 end; /* an offset from head on 64-bit kernels */
	u8 *head;
	u8 *data;
	u8 cb[48];
} KERNEL;

struct skb_shared_info {
	u16 gso_segs;
} KERNEL;

/* What TCP keeps in sk_buff::cb. */
struct tcp_skb_cb {
	u16 tcp_gso_segs;
} KERNEL;
