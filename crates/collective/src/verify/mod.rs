//! Proves a program before anybody runs it.
//!
//! [`verify`] checks, for input and output apart and as one memory (*in place*):
//! - **shapes**: every slot lies within its space, nothing writes the input, every message has one sender and one
//!   receiver that agree about what it is;
//! - **progress**: no wait forms a cycle, given how much an edge can hold ([`Capacity`]);
//! - **hazards**: two steps of a rank that touch the same cell, one of them writing, are in order whatever the timing;
//! - **values**: by symbolic execution, every rank ends with exactly what the collective promises: each contribution
//!   once, each reduction finished once and not touched afterwards, and the same expression (so the same bits) on all
//!   ranks of an all-reduce. After a barrier every rank has heard of every other.
//!
//! A program is stated for one tile; tiles share no cell and no message, so what holds for one holds for all. (The room
//! of [`Capacity::Messages`] is per tile, too.)
//!
//! The cost is about the cells that the steps touch, (steps of one rank)²/64 word operations for each rank, and another pass
//! over all steps for each rank on which the order of two such steps is known through its peers only.

mod expression;
mod hazard;
mod order;
mod path;
mod refusal;
mod shape;
mod values;

use crate::Program;

pub(crate) use order::Graph;
pub use refusal::{Reason, Refusal};
pub(crate) use shape::{Matches, NONE, check as match_messages};

/// How much a directed edge between two ranks holds of what its receiver has not consumed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capacity {
    /// Nothing: a send is complete when its receive is. The strictest; single copies between address spaces work so.
    Rendezvous,
    /// A message leaves unless this many earlier ones (in the order of the sender's steps) are still unconsumed.
    Messages(usize),
    /// Everything.
    Unbounded,
}

/// What [`verify`] found out about a program that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Steps of all ranks.
    pub steps: usize,
    /// Messages of one tile.
    pub messages: usize,
    /// The longest chain of messages each of which is sent only after the one before has arrived.
    pub rounds: usize,
}

/// Is the program right, in place and out of place, on edges of this capacity? If not: which rank and step, and why.
pub fn verify(program: &Program, capacity: Capacity) -> Result<Proof, Refusal> {
    verify_where(program, capacity, &[false, true])
}

/// As [`verify`], for a program that is not to be run in place: see [`Program::apart`].
pub fn verify_apart(program: &Program, capacity: Capacity) -> Result<Proof, Refusal> {
    verify_where(program, capacity, &[false])
}

/// As [`verify`], but about what happens when only: no wait closes a ring, and nothing races, input and output being apart.
pub(crate) fn verify_order(program: &Program, capacity: Capacity) -> Result<(), Refusal> {
    let matches = shape::check(program)?;
    hazard::check(&order::Graph::new(program, &matches, capacity)?, &[false])
}

fn verify_where(program: &Program, capacity: Capacity, in_place: &[bool]) -> Result<Proof, Refusal> {
    let matches = shape::check(program)?;
    let graph = order::Graph::new(program, &matches, capacity)?;
    let rounds = graph.rounds();
    graph.check_barrier()?;
    hazard::check(&graph, in_place)?;
    for &in_place in in_place {
        values::check(&graph, in_place)?;
    }
    Ok(Proof { steps: matches.steps(), messages: matches.messages(), rounds })
}
