use serde::{Deserialize, Serialize};

/// What a link costs: Hockney's model, with a term for combining, in which a port is free again before its message has
/// arrived.
///
/// A message of b bytes keeps a port of its sender, and later one of its receiver, busy for overhead + beta·b seconds,
/// and arrives alpha + beta·b seconds after its start. What lies between alpha and overhead is waiting: for the wire,
/// or for the peer's turn on a shared processor. Many messages at once cost it once, messages that depend on each other
/// each time. With overhead = alpha this is Hockney's model.
///
/// Source: R. Hockney, "The communication challenge for MPP" (1994); the overhead as o in Culler et al., "LogP: towards
/// a realistic model of parallel computation" (1993), and Alexandrov, Ionescu, Schauser and Scheiman, "LogGP" (1995);
/// the gamma term as in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
/// (2005), §3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCost {
    /// Seconds from the start of an empty message to its arrival.
    pub alpha: f64,
    /// Seconds for which an empty message keeps a port busy. At most alpha.
    pub overhead: f64,
    /// Seconds per byte moved.
    pub beta: f64,
    /// Seconds per byte reduced.
    pub gamma: f64,
}

/// What the links of a world cost: those between ranks of one host, and those between hosts, where all ranks of a host
/// share one network interface in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCosts {
    /// Between two ranks of one host.
    pub within: LinkCost,
    /// Between two hosts.
    pub across: LinkCost,
    /// Between hosts: seconds per byte more for every sender but the first of those whose streams meet at one receiver
    /// (incast). Where it is not zero, streams that meet lose time: in the queue of a switch that overflows, or because
    /// one waits while the other has the port.
    ///
    /// Source: the incast term of Xiong et al., "Revisiting the time cost model of AllReduce" (arXiv 2409.04202, 2024),
    /// with a threshold of one sender.
    #[serde(default)]
    pub contention: f64,
    /// The same within a host whose ranks outnumber its processors and send through sockets, from
    /// [`LinkCosts::CONTENTION_WITHIN_FROM`] on: whoever takes in from one neighbour alone finds in a cache what it sends
    /// on. Zero elsewhere.
    #[serde(default)]
    pub contention_within: f64,
    /// Within a host: does the receiver fetch the bytes from where the sender has them? The sender's port then is busy for
    /// the overhead only, and many receivers fetch at once.
    #[serde(default)]
    pub fetched: bool,
}

impl LinkCost {
    /// A link in Hockney's model: a message keeps the ports busy until it has arrived.
    pub const fn hockney(alpha: f64, beta: f64, gamma: f64) -> Self {
        LinkCost { alpha, overhead: alpha, beta, gamma }
    }

    /// Seconds from the start of a message of `bytes` to its arrival.
    pub fn message(&self, bytes: usize) -> f64 {
        self.alpha + self.beta * bytes as f64
    }

    /// Seconds for which a message of `bytes` keeps a port busy.
    pub fn busy(&self, bytes: usize) -> f64 {
        self.overhead + self.beta * bytes as f64
    }

    /// Seconds of alpha during which no port is busy.
    pub fn latency(&self) -> f64 {
        self.alpha - self.overhead
    }

    /// The larger of each.
    pub fn max(&self, other: &LinkCost) -> LinkCost {
        LinkCost {
            alpha: self.alpha.max(other.alpha),
            overhead: self.overhead.max(other.overhead),
            beta: self.beta.max(other.beta),
            gamma: self.gamma.max(other.gamma),
        }
    }
}

impl LinkCosts {
    /// Bytes per block from which [`LinkCosts::contention_within`] counts; what is smaller stays in caches.
    pub const CONTENTION_WITHIN_FROM: usize = 4 << 20;

    /// Links that cost the same wherever they lead, and on which nobody is in the way of anybody else.
    pub const fn uniform(link: LinkCost) -> Self {
        LinkCosts { within: link, across: link, contention: 0.0, contention_within: 0.0, fetched: false }
    }
}
