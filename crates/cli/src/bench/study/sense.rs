//! What makes no sense in a study, as far as its arguments say: refused before anything starts. Pure.

use super::super::arguments::{BenchArguments, ComputeChoice};
use super::super::cell::Setting;
use super::super::stage::Stage;
use super::{Chosen, Place, Refusal, refuse};

/// What can be said before any name is looked up.
pub fn check(arguments: &BenchArguments, place: Place) -> Result<(), Refusal> {
    let replays = matches!(arguments.compute, Some(ComputeChoice::Replay(_)));
    if let Some(factor) = arguments.dilate {
        check_dilation(factor, replays, arguments, place)?;
    }
    if replays && arguments.data.is_some() {
        return refuse("--data is what real computation trains on; a replay reads none", "leave --data out");
    }
    if let (Some(streams), false) = (arguments.tcp_streams, arguments.emulate.is_empty()) {
        return refuse(
            format!("--tcp-streams {streams}: an emulated network is made of shared memory, and has none of them"),
            "leave --tcp-streams out, or measure these links as they are, without --emulate",
        );
    }
    if arguments.budget.is_some_and(|seconds| !(seconds.is_finite() && seconds > 0.0)) {
        return refuse("--budget must be a positive number of seconds", "--budget 60");
    }
    match place.launched {
        None if !arguments.servers_on.is_empty() && arguments.hosts.is_none() => refuse(
            "--servers-on names hosts, and all ranks are on this one: no launcher has started this program",
            "start it by srun, mpirun or `paceline launch`, or emulate hosts by --hosts; or leave --servers-on out",
        ),
        Some(_) if !arguments.emulate.is_empty() => refuse(
            "--emulate shapes links within one machine; a launcher's ranks have links of their own",
            "leave --emulate out, or run without a launcher",
        ),
        _ => Ok(()),
    }
}

const REPLAY: &str = "add --compute replay, on a network by --emulate";

/// Refuses a factor where nothing would be slowed, as times would be divided by it all the same: both the computation and
/// the links must be made here.
fn check_dilation(factor: f64, replays: bool, arguments: &BenchArguments, place: Place) -> Result<(), Refusal> {
    if place.launched.is_some() {
        return refuse(
            "--dilate slows emulated links; a launcher's ranks have links of their own",
            "leave --dilate out, or run without a launcher and add --compute replay --emulate 10GbE",
        );
    }
    // Of the two panels that no arguments mean, the second one is a replay on an emulated network.
    let unnamed = arguments.models.is_empty() && arguments.compute.is_none();
    let default = unnamed && arguments.emulate.is_empty();
    if !(replays || default) {
        return refuse("--dilate slows a replay; real computation cannot be slowed", REPLAY);
    }
    if replays && arguments.emulate.is_empty() {
        return refuse(
            "--dilate slows emulated links together with a replay; real links cannot be slowed",
            "add --emulate 10GbE, or leave --dilate out",
        );
    }
    if !(factor.is_finite() && factor >= 1.0) {
        return refuse(format!("--dilate {factor} must be a number of at least 1"), "1 is real time");
    }
    Ok(())
}

/// Refuses methods whose plan would have to change after servers have begun to keep the optimiser's state.
pub fn check_plans(methods: &[Chosen]) -> Result<(), Refusal> {
    let mut open = methods.iter().filter(|chosen| chosen.strategy.is_open());
    match open.find_map(|chosen| Some((chosen, chosen.strategy.refuses_new_plans()?))) {
        Some((chosen, why)) => Err(Refusal { what: format!("--methods {}: {why}", chosen.name), help: None }),
        None => Ok(()),
    }
}

/// An emulated network is made of what its ranks share; and ranks that are started here share memory, unless they are told not to.
pub fn check_links(methods: &[Chosen], setting: &Setting, place: Place) -> Result<(), Refusal> {
    let over_tcp = |chosen: &&Chosen| chosen.strategy.protocol.name == "tcp";
    match (&setting.network, methods.iter().find(over_tcp)) {
        (None, None) if setting.tcp_streams > 1 && place.launched.is_none() => refuse(
            format!(
                "--tcp-streams {}: shared memory carries what ranks on this machine say, and no TCP",
                setting.tcp_streams
            ),
            "name a method with protocol=tcp, such as ddp,protocol=tcp, or leave --tcp-streams out",
        ),
        (Some(network), Some(chosen)) => refuse(
            format!(
                "--methods {}: an emulated network is made of shared memory, and protocol=tcp goes without (--emulate \
                 {network})",
                chosen.name
            ),
            "leave protocol=tcp out, or measure these links as they are, without --emulate",
        ),
        _ => Ok(()),
    }
}

/// Servers on hosts of their own must be told which, and hosts that serve must have whom to serve: else they only stand idle.
pub fn check_servers(methods: &[Chosen], setting: &Setting, place: Place) -> Result<(), Refusal> {
    let serving: Vec<&str> = setting.servers_on.iter().map(|host| host.name.as_str()).collect();
    if !serving.is_empty() && methods.iter().all(|chosen| chosen.strategy.servers(1, 1).is_none()) {
        return refuse(
            format!("--servers-on {}: no method here has servers that could live there", serving.join(",")),
            "name a method with arch=ps, such as wfbp-ps, or leave --servers-on out",
        );
    }
    let dedicated = |chosen: &&Chosen| chosen.strategy.servers(1, 1).is_some_and(|servers| servers.dedicated);
    match (place.launched, methods.iter().find(dedicated)) {
        (Some(launched), Some(chosen)) if setting.servers_on.is_empty() => refuse(
            format!("{} has servers on hosts of their own, and nothing says which hosts serve", chosen.name),
            format!("--servers-on HOST,…; the hosts are {}", launched.stage.list()),
        ),
        _ => Ok(()),
    }
}

/// Refuses more workers than there is room for.
pub fn fits(
    most: usize,
    stage: &Stage,
    setting: &Setting,
    arguments: &BenchArguments,
    place: Place,
) -> Result<(), Refusal> {
    let room = stage.workers(&setting.servers_on).len();
    let serve = if setting.servers_on.is_empty() { "" } else { " that do not serve" };
    match (place.launched, arguments.hosts) {
        _ if most <= room => Ok(()),
        (None, Some(hosts)) => refuse(
            format!("{most} workers do not fit on --hosts {hosts}: there are {room} places{serve}"),
            "more hosts, more workers on each, or fewer --workers",
        ),
        _ => refuse(
            format!("--workers {most}, but the launcher has started {room} ranks{serve}"),
            "start more ranks, or ask for fewer workers",
        ),
    }
}
