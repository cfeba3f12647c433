//! What NCCL's own model says, as the program that trains gets it.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use crate::alone;
use crate::library::{Library, Linked};
use crate::nccl::{Question, Tuner};
use crate::plugin::{install, release};

type Costs = unsafe extern "C" fn(c_int, u64, u32, u32, *mut f32, usize, *mut u64, *mut u32) -> usize;

/// What was kept of calls of this kind among 12 ranks on 3 hosts: bytes, columns, and costs.
fn kept(function: c_int, bytes: u64) -> Option<(u64, u32, Vec<f32>)> {
    let symbol = Linked.symbol("paceline_nccl_costs");
    assert!(!symbol.is_null());
    let (mut costs, mut of_bytes, mut protocols) = ([7.0; 32], 0, 0);
    // SAFETY: the plug-in's function of this name; the places are as large as is said.
    let count = unsafe {
        let read = transmute::<*const c_void, Costs>(symbol);
        let count = read(function, bytes, 12, 3, costs.as_mut_ptr(), 32, &mut of_bytes, &mut protocols);
        assert_eq!(read(function, bytes, 12, 3, null_mut(), 0, null_mut(), null_mut()), count, "places may be null");
        let mut two = [7.0; 3];
        assert_eq!(read(function, bytes, 12, 3, two.as_mut_ptr(), 2, null_mut(), null_mut()), count);
        assert_eq!(two[2], 7.0, "no more than there is room for");
        count
    };
    assert!(costs[count..].iter().all(|cost| *cost == 7.0));
    (count > 0).then(|| (of_bytes, protocols, costs[..count].to_vec()))
}

/// The first call of a kind tells it, as NCCL has made it: before a choice is written there.
#[test]
fn the_program_gets_the_tables_that_nccl_has_handed_over() {
    let _alone = alone();
    install(&Linked);
    let tuner = Tuner::find(&Linked, release("2.30")).expect("a tuner");
    let context = tuner.init(12, 3, None).expect("a communicator");
    let ask = |bytes: usize, operations: c_int, first: f32| {
        let mut costs: [f32; 21] = std::array::from_fn(|place| first + place as f32);
        costs[3] = -1.0;
        let question = Question { function: 4, bytes, operations, can_register: 0 };
        assert_eq!(tuner.ask(context, &question, costs.as_mut_ptr(), (7, 3), &mut 0), 0);
        costs
    };
    // Several operations at once have the start-ups of all of them in their costs.
    ask(1500, 2, 500.0);
    assert_eq!(kept(4, 1500), None);
    let chosen = ask(1500, 1, 40.0);
    assert!(chosen.contains(&0.0), "a rule is about it");
    ask(1600, 1, 90.0);
    let (bytes, protocols, costs) = kept(4, 1024).expect("a table");
    assert_eq!((bytes, protocols, costs.len()), (1500, 3, 21));
    assert!(costs.iter().enumerate().all(|(place, cost)| *cost == if place == 3 { -1.0 } else { 40.0 + place as f32 }));
    assert_eq!((kept(4, 2048), kept(3, 1024), kept(-1, 1024), kept(99, 1024)), (None, None, None, None));
    assert_eq!(tuner.end(context), 0);
}
