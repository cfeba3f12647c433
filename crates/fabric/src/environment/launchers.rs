//! What each launcher sets.

use paceline_plan::Fnv1a;

use super::{EnvironmentError, Launcher, MeetingPoint, Variables, WORLD_SIZE_MAX, World, invalid};

/// The range of [`job_port`]: below the ports that Linux hands out to outgoing connections (32768 and up).
const JOB_PORTS: std::ops::Range<u16> = 16384..32768;

/// Slurm numbers its own steps (batch script, interactive shell, …) down from here (`slurm.h`).
const SLURM_STEP_MAX: u32 = 0xffff_fff0;

/// The port that ranks meet at under torchrun: 1000 above `MASTER_PORT`, or 1000 below where there is none above.
pub fn torchrun_port(master_port: u16) -> u16 {
    master_port.checked_add(1000).unwrap_or(master_port - 1000)
}

/// A port from 16384 to 32767 that follows from the job's id ([`Fnv1a`]).
pub fn job_port(job: &str) -> u16 {
    // The high bits mix best.
    JOB_PORTS.start + ((Fnv1a::of(job.as_bytes()) >> 32) % JOB_PORTS.len() as u64) as u16
}

/// Where this process stands, by the first launcher that speaks.
pub(super) fn world(variables: &Variables<'_>) -> Result<Option<World>, EnvironmentError> {
    let find = [paceline, torchrun, open_mpi, slurm, mpich];
    let Some(found) = find.iter().find_map(|find| find(variables).transpose()).transpose()? else { return Ok(None) };
    let (rank_variable, rank) = found.rank;
    let (size_variable, world_size) = found.world_size;
    if world_size == 0 || world_size > WORLD_SIZE_MAX {
        let what = format!("is not a number of ranks from 1 to {WORLD_SIZE_MAX}");
        return Err(invalid(size_variable, world_size.to_string(), what));
    }
    if rank >= world_size {
        let what = format!("is not a rank below {size_variable}={world_size}");
        return Err(invalid(rank_variable, rank.to_string(), what));
    }
    let meeting_point = match variables.get("PACELINE_RENDEZVOUS") {
        Some(value) => Some(value.parse().map_err(|what: String| invalid("PACELINE_RENDEZVOUS", value, what))?),
        None if world_size == 1 => None,
        None => Some(found.meeting_point?),
    };
    let listener = variables.number("PACELINE_RENDEZVOUS_FD")?;
    if let Some(descriptor) = listener.filter(|&descriptor: &i32| descriptor < 0) {
        return Err(invalid("PACELINE_RENDEZVOUS_FD", descriptor.to_string(), "is no file descriptor"));
    }
    let job = variables.get("PACELINE_JOB").unwrap_or(found.job);
    let (local_rank, local_size) = (found.local_rank, found.local_size);
    let listener = listener.filter(|_| rank == 0);
    Ok(Some(World {
        launcher: found.launcher,
        rank,
        world_size,
        local_rank,
        local_size,
        meeting_point,
        listener,
        job,
        terms: String::new(),
    }))
}

/// What a launcher said; numbers come with the variable that holds them.
struct Found {
    launcher: Launcher,
    rank: (&'static str, u32),
    world_size: (&'static str, u32),
    local_rank: Option<u32>,
    local_size: Option<u32>,
    /// Asked for only if the user names none.
    meeting_point: Result<MeetingPoint, EnvironmentError>,
    job: String,
}

type Find = Result<Option<Found>, EnvironmentError>;

fn paceline(variables: &Variables<'_>) -> Find {
    let Some(rank) = variables.number("PACELINE_RANK")? else { return Ok(None) };
    Ok(Some(Found {
        launcher: Launcher::Paceline,
        rank: ("PACELINE_RANK", rank),
        world_size: ("PACELINE_WORLD_SIZE", variables.required("PACELINE_WORLD_SIZE", "PACELINE_RANK")?),
        local_rank: variables.number("PACELINE_LOCAL_RANK")?,
        local_size: variables.number("PACELINE_LOCAL_SIZE")?,
        meeting_point: Err(no_meeting_point("PACELINE_RANK does not say where rank 0 is")),
        job: String::new(),
    }))
}

fn torchrun(variables: &Variables<'_>) -> Find {
    // Others use these two names alone.
    if variables.get("RANK").is_none() || variables.get("WORLD_SIZE").is_none() {
        return Ok(None);
    }
    let restart = variables.get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    Ok(Some(Found {
        launcher: Launcher::Torchrun,
        rank: ("RANK", variables.required("RANK", "WORLD_SIZE")?),
        world_size: ("WORLD_SIZE", variables.required("WORLD_SIZE", "RANK")?),
        local_rank: variables.number("LOCAL_RANK")?,
        local_size: variables.number("LOCAL_WORLD_SIZE")?,
        meeting_point: torchrun_meeting_point(variables),
        job: variables.get("TORCHELASTIC_RUN_ID").map(|run| format!("{run}.{restart}")).unwrap_or_default(),
    }))
}

fn torchrun_meeting_point(variables: &Variables<'_>) -> Result<MeetingPoint, EnvironmentError> {
    let missing = |variable| EnvironmentError::Missing {
        variable,
        why: "it goes with RANK; or set PACELINE_RENDEZVOUS=host:port of rank 0".into(),
    };
    let host = variables.get("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
    let port: u16 = variables.number("MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?;
    if port == 0 {
        return Err(invalid("MASTER_PORT", "0", "is not a port"));
    }
    Ok(MeetingPoint { host, port: torchrun_port(port) })
}

fn open_mpi(variables: &Variables<'_>) -> Find {
    let Some(rank) = variables.number("OMPI_COMM_WORLD_RANK")? else { return Ok(None) };
    let world_size = variables.required("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")?;
    let local_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    // Open MPI 4 and 5 in this order; the namespace also serves where the first is gone.
    let job = ["OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"].iter().find_map(|name| variables.get(name));
    let job = job.unwrap_or_default();
    let meeting_point = if local_size == Some(world_size) {
        Ok(here(&job))
    } else {
        let name = "OMPI_MCA_orte_hnp_uri";
        let uri = variables.get(name).ok_or_else(|| {
            no_meeting_point("the ranks are on several hosts, and mpirun does not say on which one rank 0 is")
        });
        uri.and_then(|uri| {
            let host = head_node(&uri).ok_or_else(|| invalid(name, &*uri, "names no address of the head node"))?;
            Ok(MeetingPoint { host, port: job_port(&job) })
        })
    };
    Ok(Some(Found {
        launcher: Launcher::OpenMpi,
        rank: ("OMPI_COMM_WORLD_RANK", rank),
        world_size: ("OMPI_COMM_WORLD_SIZE", world_size),
        local_rank: variables.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
        local_size,
        meeting_point,
        job,
    }))
}

/// The first address in `1668743168.0;tcp://192.0.2.2,10.0.0.2:41277;tcp6://[fd00::2]:45367`.
fn head_node(uri: &str) -> Option<String> {
    let addresses = uri.split(';').find_map(|part| part.split_once("://"))?.1;
    let addresses = addresses.rsplit_once(':').map_or(addresses, |(addresses, _port)| addresses);
    let first = addresses.split(',').next()?.trim_matches(['[', ']']);
    first.parse::<std::net::IpAddr>().ok().map(|address| address.to_string())
}

fn slurm(variables: &Variables<'_>) -> Find {
    let Some(rank) = variables.number("SLURM_PROCID")? else { return Ok(None) };
    // In a batch script or an interactive shell SLURM_PROCID is 0 as well, and nothing was launched.
    let step: Option<u32> = variables.number("SLURM_STEP_ID")?;
    let Some(step) = step.filter(|&step| step < SLURM_STEP_MAX) else { return Ok(None) };
    let size_variable = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"].into_iter().find(|name| variables.get(name).is_some());
    let size_variable = size_variable.unwrap_or("SLURM_NTASKS");
    let world_size = variables.required(size_variable, "SLURM_PROCID")?;
    // Hydra starts one process per host through srun, and the ranks inherit from that one.
    let pmi: (Option<u32>, Option<u32>) = (variables.number("PMI_RANK")?, variables.number("PMI_SIZE")?);
    if let (Some(pmi_rank), Some(pmi_size)) = pmi
        && (pmi_rank, pmi_size) != (rank, world_size)
    {
        return Ok(None);
    }
    let job = format!("{}.{step}", variables.get("SLURM_JOB_ID").unwrap_or_default());
    let nodes: Option<u32> = variables.number("SLURM_STEP_NUM_NODES")?;
    let meeting_point = if nodes == Some(1) { Ok(here(&job)) } else { slurm_meeting_point(variables, &job) };
    Ok(Some(Found {
        launcher: Launcher::Slurm,
        rank: ("SLURM_PROCID", rank),
        world_size: (size_variable, world_size),
        local_rank: variables.number("SLURM_LOCALID")?,
        local_size: slurm_local_size(variables)?,
        meeting_point,
        job,
    }))
}

/// The tasks on this node: `SLURM_STEP_TASKS_PER_NODE` lists them node by node, `SLURM_NODEID` says which node it is.
/// Only the default for the number of threads follows from it: a list that does not say it is no error.
fn slurm_local_size(variables: &Variables<'_>) -> Result<Option<u32>, EnvironmentError> {
    let list = variables.get("SLURM_STEP_TASKS_PER_NODE");
    let node: Option<u32> = variables.number("SLURM_NODEID")?;
    Ok(list.zip(node).and_then(|(list, node)| tasks_of(node, &list)))
}

/// The entry for a node in Slurm's list of counts: in `4(x2),1`, nodes 0 and 1 have 4 and node 2 has 1.
fn tasks_of(node: u32, list: &str) -> Option<u32> {
    let mut nodes = 0u32;
    for entry in list.split(',') {
        let (tasks, times) = match entry.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        let tasks: u32 = tasks.trim().parse().ok()?;
        nodes = nodes.checked_add(times)?;
        if node < nodes {
            return (tasks > 0).then_some(tasks);
        }
    }
    None
}

fn slurm_meeting_point(variables: &Variables<'_>, job: &str) -> Result<MeetingPoint, EnvironmentError> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(list) = variables.get(name) {
            let host =
                first_host(&list).ok_or_else(|| invalid(name, list, "is no list of hosts like node[01-04,7],gpu1"))?;
            return Ok(MeetingPoint { host, port: job_port(job) });
        }
    }
    let host = variables.get("SLURM_LAUNCH_NODE_IPADDR");
    let host = host.ok_or_else(|| no_meeting_point("Slurm names neither the step's hosts nor the launching one"))?;
    Ok(MeetingPoint { host, port: job_port(job) })
}

/// The first host of Slurm's bracket notation: `rack[2-3]node[001-004,007],gpu5` begins with `rack2node001`.
fn first_host(list: &str) -> Option<String> {
    let (mut host, mut rest) = (String::new(), list.trim());
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            rest = "";
            break;
        }
        let (numbers, after) = rest[at + 1..].split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    let well_formed = !host.is_empty() && !host.contains([']', ' ']);
    well_formed.then_some(host)
}

fn mpich(variables: &Variables<'_>) -> Find {
    let Some(rank) = variables.number("PMI_RANK")? else { return Ok(None) };
    let world_size = variables.required("PMI_SIZE", "PMI_RANK")?;
    let local_size = variables.number("MPI_LOCALNRANKS")?;
    let job = variables.get("PMI_JOBID").unwrap_or_default();
    let meeting_point = if local_size == Some(world_size) {
        Ok(here(&job))
    } else {
        Err(no_meeting_point("the ranks are on several hosts, and mpiexec does not say on which one rank 0 is"))
    };
    Ok(Some(Found {
        launcher: Launcher::Mpich,
        rank: ("PMI_RANK", rank),
        world_size: ("PMI_SIZE", world_size),
        local_rank: variables.number("MPI_LOCALRANKID")?,
        local_size,
        meeting_point,
        job,
    }))
}

fn here(job: &str) -> MeetingPoint {
    MeetingPoint { host: "127.0.0.1".into(), port: job_port(job) }
}

fn no_meeting_point(why: &str) -> EnvironmentError {
    let why = format!("{why}; set it to host:port of rank 0, the same on every rank");
    EnvironmentError::Missing { variable: "PACELINE_RENDEZVOUS", why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        let cases = [
            ("node1", Some("node1")),
            ("node[001-004,007],gpu5", Some("node001")),
            ("a,b[1-2]", Some("a")),
            ("rack[2-3]node[4,5]-ib,x", Some("rack2node4-ib")),
            ("n[7]", Some("n7")),
            ("n[7", None),
            ("n[x]", None),
            ("n[]", None),
            ("", None),
            ("n]", None),
        ];
        for (list, expected) in cases {
            assert_eq!(first_host(list).as_deref(), expected, "{list}");
        }
    }

    #[test]
    fn the_tasks_of_a_node() {
        let cases = [
            ("4(x2),1", [Some(4), Some(4), Some(1), None]),
            ("3", [Some(3), None, None, None]),
            ("2,1(x3)", [Some(2), Some(1), Some(1), Some(1)]),
            ("4(x2", [None; 4]),
            ("4(x4294967295),1(x2)", [Some(4); 4]),
            ("", [None; 4]),
            ("0(x4)", [None; 4]),
        ];
        for (list, expected) in cases {
            assert_eq!([0, 1, 2, 3].map(|node| tasks_of(node, list)), expected, "{list}");
        }
    }

    #[test]
    fn the_head_node_of_an_uri() {
        let cases = [
            ("1668743168.0;tcp://192.0.2.2:41277;tcp6://[fd00::2]:45367", Some("192.0.2.2")),
            ("1.0;tcp://10.0.0.1,172.17.0.1:41223", Some("10.0.0.1")),
            ("1.0;tcp6://[fd00::2]:45367", Some("fd00::2")),
            ("1.0;tcp://", None),
            ("nonsense", None),
        ];
        for (uri, expected) in cases {
            assert_eq!(head_node(uri).as_deref(), expected, "{uri}");
        }
    }
}
