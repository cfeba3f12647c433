//! The parameter server: shards that add what workers push, and workers that pull what became of it.
//!
//! The ranks of a world are workers first, then shards ([`Roles`]). A shard is a rank like any other: a process of its
//! own, or a thread beside a worker ([`join_beside`]). Each has the partitions that the plan gives it, so several share
//! the load. Pushing and pulling a partition is one operation of the communicator, the collective *push-pull*, with its
//! keys, priorities, deadlines and failures. Workers that share a host add up first, if that is cheaper; the shard adds in the
//! order of the ranks, or of the hosts, so that the bits do not depend on who comes first.
//!
//! ```
//! use paceline_comm::{CallOptions, Communicator};
//! use paceline_plan::{Bucket, Partition, Plan};
//! use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions, serve};
//!
//! // Six gradients in one bucket, cut into two partitions, both at the only shard.
//! let mut bucket = Bucket::whole(vec![0], 0..6);
//! bucket.partitions = [0..4, 4..6].map(|elements| Partition { elements, shard: Some(0) }).into();
//! let plan = Plan {
//!     version: 1,
//!     strategy: "arch=ps:1".into(),
//!     buckets: vec![bucket],
//!     shards: 1,
//!     credit_bytes: None,
//!     forward_overlap: false,
//!     server_priority_only: false,
//! };
//! let assignment = Assignment { plan, iterations: 0..2, mode: Mode::Aggregate };
//!
//! let roles = Roles::new(2, 1)?;
//! let ranks: Vec<_> = Communicator::threads(roles.world_size())?
//!     .into_iter()
//!     .map(|world| {
//!         let assignment = assignment.clone();
//!         std::thread::spawn(move || -> Result<Vec<f32>, paceline_server::ServerError> {
//!             if roles.shard_of(world.rank()).is_some() {
//!                 serve(&world, roles, &ServeOptions::default())?;
//!                 return Ok(Vec::new());
//!             }
//!             let server = ParameterServer::connect(&world, roles)?;
//!             server.assign(&assignment)?;
//!             let mut sums = Vec::new();
//!             for iteration in 0..2 {
//!                 for (operation, (_, partition)) in assignment.plan.partitions().enumerate() {
//!                     let mut gradient = world.alloc(partition.elements.len())?;
//!                     gradient.fill(world.rank() as f32 + 1.0);
//!                     let options = assignment.options(iteration, operation, CallOptions::default());
//!                     let shard = partition.shard.unwrap_or(0);
//!                     sums.extend_from_slice(&server.start_push_pull(shard, gradient, &options)?.wait()?);
//!                 }
//!             }
//!             server.stop()?;
//!             Ok(sums)
//!         })
//!     })
//!     .collect();
//! for (rank, thread) in ranks.into_iter().enumerate() {
//!     let sums = thread.join().expect("no panic")?;
//!     assert_eq!(sums, if rank < 2 { vec![3.0; 12] } else { vec![] });
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod apply;
mod assignment;
mod beside;
mod contributions;
mod error;
mod groups;
mod roles;
mod serve;
mod trace;
mod worker;

pub use apply::{Apply, Optimizers, Update};
pub use assignment::{Assignment, AssignmentError, Mode};
pub use beside::{Joined, ShardThread, join_beside, join_beside_with};
pub use error::ServerError;
pub use roles::{Roles, RolesError};
pub use serve::{ServeOptions, Served, serve};
pub use trace::{ShardSpan, ShardTrace, ShardWork};
pub use worker::{ParameterServer, PendingUpdate};
