//! What a rank of a world does: works, serves, or both.

use std::sync::Arc;
use std::time::Duration;

use paceline_comm::Communicator;
use paceline_fabric::environment::Environment;
use paceline_plan::{Emulation, Hosts, Shape};
use paceline_server::{ParameterServer, Roles, join_beside, serve};
use paceline_train::{CellRun, Length, MeasureOptions, Peers, measure as measure_cell};
use paceline_tune::policy_file;

use super::cell::Cell;
use super::models::Loaded;
use super::rank::WorldSpec;
use super::share::confine;
use crate::failure::Failure;
use crate::{Registry, workers};

/// Measures the cell as the rank that the environment says; rank 0 has the result.
///
/// # Errors
/// The ranks do not find together; the model cannot be made; the measurement failed.
pub fn measure(spec: &WorldSpec, registry: &Registry) -> Result<Option<CellRun>, Failure> {
    let cell = &spec.cell;
    let mut environment = Environment::read()
        .map_err(|error| Failure::usage("the environment does not say where this rank belongs").cause(error))?;
    // A study has worlds of other numbers of hosts, too.
    environment.topology = Shape::Flat;
    confine(cell, environment.world.as_ref());
    let strategy = registry.grammar().parse(&cell.strategy).map_err(Failure::usage)?;
    let transport = strategy.protocol.name.parse().map_err(Failure::usage)?;
    let mut config = workers::config(environment, transport)?;
    config.emulation = emulation(cell)?;
    config.tcp_streams = cell.setting.tcp_streams;
    let rank = config.environment.world.as_ref().map_or(0, |place| place.rank as usize);
    if rank >= cell.workers {
        // A server waits while workers compute, and that is its work.
        config.watch.on_stall = None;
    }
    let loaded = Loaded::new(cell, registry)?;
    if cell.shards == 0 {
        let communicator = Communicator::connect(config)?;
        return work(&communicator, (&communicator).into(), loaded, spec, registry);
    }
    if cell.dedicated_servers {
        let world = Communicator::connect(config)?;
        return work_or_serve(&world, loaded, spec, registry);
    }
    let hosts = config.hosts()?;
    let joined = join_beside(config, &hosts, cell.shards, &registry.serve_options(&strategy))?;
    let server = Arc::new(ParameterServer::connect(&joined.world, joined.roles)?);
    let run = work(&joined.world, (&server).into(), loaded, spec, registry)?;
    server.stop()?;
    for shard in joined.shards {
        shard.join()?;
    }
    Ok(run)
}

/// The part of a rank of a world in which the last ranks are nothing but servers.
///
/// # Errors
/// As [`measure`].
pub fn work_or_serve(
    world: &Communicator,
    loaded: Loaded,
    spec: &WorldSpec,
    registry: &Registry,
) -> Result<Option<CellRun>, Failure> {
    let roles = Roles::new(spec.cell.workers, spec.cell.shards).map_err(Failure::usage)?;
    if roles.shard_of(world.rank()).is_some() {
        let strategy = registry.grammar().parse(&spec.cell.strategy).map_err(Failure::usage)?;
        serve(world, roles, &registry.serve_options(&strategy))?;
        return Ok(None);
    }
    let server = Arc::new(ParameterServer::connect(world, roles)?);
    let run = work(world, (&server).into(), loaded, spec, registry)?;
    server.stop()?;
    Ok(run)
}

/// The part of a worker.
///
/// # Errors
/// The measurement failed.
pub fn work(
    world: &Communicator,
    peers: Peers,
    mut loaded: Loaded,
    spec: &WorldSpec,
    registry: &Registry,
) -> Result<Option<CellRun>, Failure> {
    let run = measure_cell(peers, loaded.subject()?, &options(spec, registry)?)?;
    Ok((world.rank() == 0).then_some(run))
}

fn options(spec: &WorldSpec, registry: &Registry) -> Result<MeasureOptions, Failure> {
    let (cell, effort) = (&spec.cell, &spec.effort);
    let policy = cell.policy.as_deref().map(policy_file::read).transpose();
    let policy = policy.map_err(|error| Failure::usage("the policy of this world makes no sense").cause(error))?;
    let length = match effort.seconds {
        None => Length::Iterations(effort.at_most),
        Some(seconds) => Length::Confident {
            relative: RELATIVE,
            at_least: effort.at_least,
            at_most: effort.at_most,
            budget: Duration::from_secs_f64(seconds),
        },
    };
    Ok(MeasureOptions {
        strategy: cell.strategy.clone(),
        schedulers: registry.schedulers().clone(),
        compressors: registry.compressors().clone(),
        local_batch: cell.setting.local_batch,
        warm_up: effort.warm_up,
        length,
        dilate: cell.setting.dilate,
        threads: cell.threads,
        timeline: spec.timeline,
        tune: cell.tuned.then(|| cell.tune_settings.options(spec.lessons.clone())),
        policy,
        ..MeasureOptions::default()
    })
}

/// Where time decides, a run ends when its mean is known so well.
const RELATIVE: f64 = 0.01;

/// The emulated cluster of the ranks that are processes: workers fill its hosts in order; dedicated servers live on the
/// hosts that serve, or have a host each. (Shards beside workers are where these are.)
fn emulation(cell: &Cell) -> Result<Option<Emulation>, Failure> {
    let Some(network) = &cell.setting.network else { return Ok(None) };
    let on_each = cell.setting.workers_per_host.unwrap_or(1);
    let servers: Vec<usize> = cell.setting.servers_on.iter().map(|host| host.number).collect();
    let working = (0..).filter(|host| !servers.contains(host)).flat_map(|host| std::iter::repeat_n(host, on_each));
    let mut hosts: Vec<usize> = working.take(cell.workers).collect();
    if cell.dedicated_servers {
        let first_free = hosts.last().map_or(0, |last| last + 1);
        let of_shard = |shard| if servers.is_empty() { first_free + shard } else { servers[shard % servers.len()] };
        hosts.extend((0..cell.shards).map(of_shard));
    }
    let hosts = Hosts::in_order(hosts.into_iter());
    let network = network.parse().map_err(|error: paceline_plan::EmulationError| Failure::usage(error))?;
    Ok(Some(Emulation { network, hosts, dilation: cell.setting.dilate }))
}

#[cfg(test)]
mod tests {
    use super::super::cell::samples::{cell, replayed};
    use super::super::cell::{ServerHost, Setting};
    use super::*;

    #[test]
    fn workers_fill_hosts_and_dedicated_servers_have_a_host_each() {
        let setting = replayed("resnet50", "10GbE", 253.1);
        let hosts = |cell: &Cell| emulation(cell).ok().flatten().expect("it is emulated").hosts.by_rank().to_vec();
        let beside = Cell { shards: 2, ..cell(&setting, "wfbp-ps", 8) };
        assert_eq!(hosts(&beside), [0, 0, 0, 0, 1, 1, 1, 1]);
        let dedicated = Cell { dedicated_servers: true, ..beside };
        assert_eq!(hosts(&dedicated), [0, 0, 0, 0, 1, 1, 1, 1, 2, 3]);
        assert_eq!(hosts(&cell(&setting, "bsp-a2a", 2)), [0, 0]);
        let host = |number: usize| ServerHost { number, name: number.to_string() };
        let setting = Setting { servers_on: vec![host(1), host(3)], workers_per_host: Some(2), ..setting };
        // Workers on hosts 0 and 2.
        let served = Cell { shards: 3, dedicated_servers: true, ..cell(&setting, "wfbp-ps", 4) };
        assert_eq!(hosts(&served), [0, 0, 1, 1, 2, 3, 2]);
    }
}
