//! Shards with an optimiser: every worker gets the parameters that one worker alone would have.

mod support;

use std::sync::Arc;

use paceline_comm::{CallOptions, Communicator};
use paceline_plan::Plan;
use paceline_server::{Apply, Assignment, Mode, ParameterServer, Roles, ServeOptions, ServerError, Update};
use support::{LINKS, Random, assert_bits, filled, gradient, plan, sum, world_with_shards};

/// SGD with momentum (Polyak 1964), with one velocity per element of the arena.
struct Momentum {
    rate: f32,
    velocity: Vec<f32>,
}

impl Momentum {
    fn step(&mut self, first: usize, gradient: &[f32], parameters: &mut [f32]) {
        let velocities = &mut self.velocity[first..first + gradient.len()];
        for ((velocity, gradient), parameter) in velocities.iter_mut().zip(gradient).zip(parameters) {
            *velocity = 0.9 * *velocity + gradient;
            *parameter -= self.rate * *velocity;
        }
    }
}

impl Apply for Momentum {
    fn apply(&mut self, update: &Update, gradient: &[f32], parameters: &mut [f32]) {
        self.step(update.elements.start, gradient, parameters);
    }
}

fn make(specification: &[u8], plan: &Plan, _shard: usize) -> Result<Box<dyn Apply>, String> {
    let rate = str::from_utf8(specification).ok().and_then(|text| text.parse().ok());
    let rate = rate.ok_or_else(|| format!("has a learning rate of {specification:?}; give a number"))?;
    Ok(Box::new(Momentum { rate, velocity: vec![0.0; plan.elements()] }))
}

fn options() -> ServeOptions {
    ServeOptions { optimizers: Some(Arc::new(make)), ..ServeOptions::default() }
}

fn sgd(plan: &Plan, iterations: std::ops::Range<u64>) -> Assignment {
    Assignment { plan: plan.clone(), iterations, mode: Mode::Apply { optimizer: b"0.01".into() } }
}

fn initial(element: usize) -> f32 {
    gradient(9, 9, element)
}

/// What one worker would have after so many iterations.
fn alone(elements: usize, workers: usize, iterations: u64) -> Vec<f32> {
    let mut parameters: Vec<f32> = (0..elements).map(initial).collect();
    let mut optimizer = Momentum { rate: 0.01, velocity: vec![0.0; elements] };
    for iteration in 0..iterations {
        let gradient: Vec<f32> = (0..elements).map(|element| sum(workers, iteration, element)).collect();
        optimizer.step(0, &gradient, &mut parameters);
    }
    parameters
}

/// Worker 0's parameters go to everyone.
fn initialise(server: &ParameterServer, world: &Communicator, assignment: &Assignment) {
    let start = |(operation, (_, partition)): (usize, (usize, &paceline_plan::Partition))| {
        let value = |element| if world.rank() == 0 { initial(element) } else { f32::NAN };
        let buffer = filled(world, partition.elements.clone(), value);
        let options = assignment.options(0, operation, CallOptions::default());
        let pending = server.start_initialise(partition.shard.unwrap(), buffer, &options).unwrap();
        (partition.elements.clone(), pending)
    };
    let pending: Vec<_> = assignment.plan.partitions().enumerate().map(start).collect();
    for (elements, pending) in pending {
        assert_bits(&pending.wait().unwrap(), elements, initial, "initial parameters");
    }
}

/// One iteration in an order of its own; the parameters as they are afterwards.
fn update(server: &ParameterServer, world: &Communicator, assignment: &Assignment, iteration: u64) -> Vec<f32> {
    let mut random = Random::new(iteration << 8 | world.rank() as u64);
    let mut partitions: Vec<_> = assignment.plan.partitions().enumerate().collect();
    random.shuffle(&mut partitions);
    let mut parameters = vec![f32::NAN; assignment.plan.elements()];
    let start = |(operation, (_, partition)): (usize, (usize, &paceline_plan::Partition))| {
        let elements = partition.elements.clone();
        let gradient = filled(world, elements.clone(), |element| gradient(world.rank(), iteration, element));
        let place = world.alloc(elements.len()).unwrap();
        let options = assignment.options(iteration, operation, CallOptions::default());
        (elements, server.start_update(partition.shard.unwrap(), gradient, place, &options).unwrap())
    };
    let pending: Vec<_> = partitions.into_iter().map(start).collect();
    for (elements, pending) in pending {
        let (pushed, pulled) = pending.wait().unwrap();
        assert_bits(&pushed, elements.clone(), |element| gradient(world.rank(), iteration, element), "what was pushed");
        parameters[elements].copy_from_slice(&pulled);
    }
    parameters
}

#[test]
fn every_worker_gets_the_parameters_of_one_worker_alone() {
    for links in LINKS {
        for (workers, shards, serving) in [(1, 1, 1), (3, 2, 2), (2, 3, 1)] {
            let roles = Roles::new(workers, shards).unwrap();
            let served = world_with_shards(links, roles, &options(), move |world, roles| {
                let server = ParameterServer::connect(world, roles).unwrap();
                let plan = plan(1, &[5000, 0, 333, 40_000], 9000, serving);
                let assignment = sgd(&plan, 0..5);
                server.assign(&assignment).unwrap();
                initialise(&server, world, &assignment);
                let mut last = Vec::new();
                for iteration in 0..5 {
                    last = update(&server, world, &assignment, iteration);
                }
                // The shards go on with the parameters and momenta that they have.
                let assignment = sgd(&plan, 5..8);
                server.assign(&assignment).unwrap();
                for iteration in 5..8 {
                    last = update(&server, world, &assignment, iteration);
                }
                server.stop().unwrap();
                let right = alone(plan.elements(), workers, 8);
                assert_bits(&last, 0..right.len(), |element| right[element], "after 8 iterations");
            });
            for (shard, served) in served.into_iter().enumerate() {
                let applied = !served.unwrap().applying.is_zero();
                assert_eq!(applied, shard < serving, "{links:?}, shard {shard} of {shards}");
            }
        }
    }
}

/// Parameters and momenta lie where the first plan has put them: a shard that was left out has none, and one that is
/// left out from now on does not hand its own over.
#[test]
fn shards_do_not_go_on_under_a_plan_for_others() {
    for (first, second) in [(1, 3), (3, 1)] {
        let roles = Roles::new(1, 3).unwrap();
        let told = "it begins with iteration 1, but the shards have no parameters";
        let served = world_with_shards(LINKS[0], roles, &options(), move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            let plan_of = |version, shards| plan(version, &[300, 70], 100, shards);
            let assignment = sgd(&plan_of(1, first), 0..1);
            server.assign(&assignment).unwrap();
            initialise(&server, world, &assignment);
            update(&server, world, &assignment, 0);
            let error = server.assign(&sgd(&plan_of(2, second), 1..2)).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        });
        for served in served {
            let error = served.unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}

#[test]
fn an_optimiser_that_cannot_be_made_is_told_to_the_workers() {
    let with = |optimizers| ServeOptions { optimizers, ..ServeOptions::default() };
    type Case = (ServeOptions, &'static [u8], u64, &'static str);
    let cases: [Case; 3] = [
        (options(), b"fast", 0, "its optimiser has a learning rate of [102, 97, 115, 116]; give a number"),
        (with(None), b"0.01", 0, "these shards were started without any"),
        (options(), b"0.01", 3, "it begins with iteration 3, but the shards have no parameters"),
    ];
    for (options, optimizer, first, told) in cases {
        let roles = Roles::new(1, 1).unwrap();
        let served = world_with_shards(LINKS[0], roles, &options, move |world, roles| {
            let server = ParameterServer::connect(world, roles).unwrap();
            let mode = Mode::Apply { optimizer: optimizer.into() };
            let assignment = Assignment { plan: plan(1, &[10], 10, 1), iterations: first..first + 1, mode };
            let error = server.assign(&assignment).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        });
        let Err(ServerError::Assignment { why, .. }) = &served[0] else { panic!("{served:?}") };
        assert!(why.to_string().contains(told), "{why}");
    }
}
