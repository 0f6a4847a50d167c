//! Both iSCSI cores joined by a simulated network under a virtual clock.
