//! Network namespaces joined by an emulated long-fat link.
