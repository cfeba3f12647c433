//! Shared-memory hosts that are threads of this process, and links between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_fabric::shm::{ShmHost, ShmLink, ShmOptions};

/// Nothing in these tests takes as long, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What each rank of a mesh got for each other.
pub type Links = BTreeMap<u32, Result<ShmLink, String>>;

/// Rings as small as they can be, so that every frame wraps and waits; and a small arena.
pub fn tiny() -> ShmOptions {
    ShmOptions { ring_bytes: 1, arena_bytes: Some(4 << 20), ..ShmOptions::default() }
}

/// Connects all pairs of hosts, ranks in order.
pub fn mesh(hosts: &[ShmHost], patience: Duration) -> Vec<Links> {
    let blobs: Vec<(u32, Vec<u8>)> = (0..).zip(hosts.iter().map(ShmHost::blob)).collect();
    let deadline = Instant::now() + patience;
    let connect = |rank: u32, host: &ShmHost| {
        let peers: Vec<_> = blobs.iter().filter(|(peer, _)| *peer != rank).cloned().collect();
        host.connect(rank, &peers, deadline).expect("a host that works")
    };
    let connect = &connect;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..).zip(hosts).map(|(rank, host)| scope.spawn(move || connect(rank, host))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Two hosts and the link of each to the other.
pub fn hosts_and_links(options: [ShmOptions; 2]) -> ([ShmHost; 2], [ShmLink; 2]) {
    let hosts = options.map(|options| ShmHost::new(options).expect("a host"));
    let mut links = mesh(&hosts, PATIENCE).into_iter();
    let mut link = |peer| links.next().expect("a rank").remove(&peer).expect("a result").expect("a link");
    let links = [link(1), link(0)];
    (hosts, links)
}

/// Two links; their hosts are gone, which must not matter.
pub fn shm_pair(options: ShmOptions) -> (ShmLink, ShmLink) {
    let (_, links) = hosts_and_links([options.clone(), options]);
    links.into()
}
