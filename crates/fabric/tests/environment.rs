//! What launchers set is understood; what makes no sense is named.

use std::collections::HashMap;
use std::time::Duration;

use paceline_fabric::CongestionControl;
use paceline_fabric::environment::{
    Environment, EnvironmentError, Launcher, MeetingPoint, Network, World, job_port, torchrun_port,
};
use paceline_plan::Shape;

fn read(variables: &str) -> Result<Environment, EnvironmentError> {
    let variables: HashMap<&str, &str> = variables.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    Environment::from_variables(|name| variables.get(name).map(|value| value.to_string()))
}

fn world(variables: &str) -> World {
    read(variables).expect("a good environment").world.expect("a launcher")
}

fn meeting_point(variables: &str) -> String {
    world(variables).meeting_point.expect("a meeting point").to_string()
}

fn error(variables: &str) -> String {
    read(variables).expect_err("a bad environment").to_string()
}

#[test]
fn nothing_is_a_world_of_nobody() {
    let environment = read("").expect("an empty environment is fine");
    assert_eq!(environment.world, None);
    assert_eq!(environment.network, Network::default());
    assert_eq!(environment.timeout, Duration::from_secs(30));
    // Half of a launcher's variables, or empty ones, are no launcher.
    assert_eq!(read("RANK=3").expect("fine").world, None);
    assert_eq!(read("WORLD_SIZE=3").expect("fine").world, None);
    assert_eq!(read("PACELINE_RANK=").expect("fine").world, None);
}

#[test]
fn paceline_launch() {
    let variables = "PACELINE_RANK=0 PACELINE_WORLD_SIZE=4 PACELINE_LOCAL_RANK=0 PACELINE_RENDEZVOUS=[::1]:4000 \
                     PACELINE_RENDEZVOUS_FD=5 PACELINE_JOB=x RANK=9 WORLD_SIZE=10";
    let expected = World {
        launcher: Launcher::Paceline,
        rank: 0,
        world_size: 4,
        local_rank: Some(0),
        local_size: None,
        meeting_point: Some(MeetingPoint { host: "::1".into(), port: 4000 }),
        listener: Some(5),
        job: "x".into(),
        terms: String::new(),
    };
    assert_eq!(world(variables), expected);
    // Only rank 0 listens.
    assert_eq!(world(&variables.replace("PACELINE_RANK=0", "PACELINE_RANK=1")).listener, None);
    // Nobody to meet.
    assert_eq!(world("PACELINE_RANK=0 PACELINE_WORLD_SIZE=1").meeting_point, None);
}

#[test]
fn torchrun() {
    let variables = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500 \
                     TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NTASKS=2";
    let world = world(variables);
    assert_eq!((world.launcher, world.rank, world.world_size), (Launcher::Torchrun, 5, 8));
    assert_eq!((world.local_rank, world.local_size, &*world.job), (Some(1), Some(4), "abc.2"));
    assert_eq!(meeting_point(variables), "node7:30500", "not MASTER_PORT itself: torchrun listens there");
    assert_eq!(torchrun_port(65000), 64000);
    assert_eq!(meeting_point(&format!("{variables} PACELINE_RENDEZVOUS=other:1")), "other:1");
    assert_eq!(
        error("RANK=0 WORLD_SIZE=2"),
        "MASTER_ADDR is not set: it goes with RANK; or set PACELINE_RENDEZVOUS=host:port of rank 0"
    );
}

#[test]
fn open_mpi() {
    // As Open MPI 4.1.4 sets them.
    let variables = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                     OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_ess_base_jobid=1668743169 PMIX_NAMESPACE=1668743169 \
                     OMPI_MCA_orte_hnp_uri=1668743168.0;tcp://192.0.2.2:41277;tcp6://[fd00::2]:45367 PMIX_RANK=1";
    let found = world(variables);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::OpenMpi, 1, 2));
    assert_eq!((found.local_rank, found.local_size, &*found.job), (Some(1), Some(2), "1668743169"));
    assert_eq!(meeting_point(variables), format!("127.0.0.1:{}", job_port("1668743169")));

    let two_hosts = variables.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1");
    assert_eq!(meeting_point(&two_hosts), format!("192.0.2.2:{}", job_port("1668743169")));
    let unknown = two_hosts.replace("orte_hnp_uri", "other");
    assert_eq!(
        error(&unknown),
        "PACELINE_RENDEZVOUS is not set: the ranks are on several hosts, and mpirun does not say on which one rank 0 is; \
         set it to host:port of rank 0, the same on every rank"
    );
    assert_eq!(meeting_point(&format!("{unknown} PACELINE_RENDEZVOUS=a:7")), "a:7");
}

#[test]
fn srun() {
    let variables = "SLURM_PROCID=3 SLURM_NTASKS=64 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=812 SLURM_STEP_ID=2 \
                     SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=node[007-008] SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 \
                     PMI_RANK=3 PMI_SIZE=4";
    let found = world(variables);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Slurm, 3, 4));
    assert_eq!((found.local_rank, found.local_size, &*found.job), (Some(1), None, "812.2"));
    let uneven = format!("{variables} SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_NODEID");
    let local_sizes = [0, 1, 2].map(|node| world(&format!("{uneven}={node}")).local_size);
    assert_eq!(local_sizes, [Some(3), Some(1), None]);
    assert_eq!(meeting_point(variables), format!("node007:{}", job_port("812.2")));
    assert!((16384..32768).contains(&job_port("812.2")) && job_port("812.2") != job_port("812.3"));

    let one_node = variables.replace("NUM_NODES=2", "NUM_NODES=1");
    assert_eq!(meeting_point(&one_node), format!("127.0.0.1:{}", job_port("812.2")));
    let no_list = variables.replace("SLURM_STEP_NODELIST", "X");
    assert_eq!(meeting_point(&no_list), format!("10.0.0.1:{}", job_port("812.2")));
    let bad_list = variables.replace("node[007-008]", "node[007");
    assert_eq!(error(&bad_list), "SLURM_STEP_NODELIST=\"node[007\" is no list of hosts like node[01-04,7],gpu1");

    // A batch script and an interactive shell are no ranks.
    for step in ["SLURM_STEP_ID=4294967290", "SLURM_STEP_ID=4294967291", ""] {
        let shell = variables.replace("SLURM_STEP_ID=2", step).replace("PMI", "X");
        assert_eq!(read(&shell).expect("fine").world, None);
    }
}

#[test]
fn mpich() {
    let variables = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    let found = world(variables);
    assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Mpich, 1, 2));
    assert_eq!((found.local_rank, found.local_size), (Some(1), Some(2)));
    assert_eq!(meeting_point(variables), format!("127.0.0.1:{}", job_port("")));
    assert!(error(&variables.replace("LOCALNRANKS=2", "LOCALNRANKS=1")).starts_with("PACELINE_RENDEZVOUS is not set"));
    // Hydra inside a Slurm job: the ranks inherit the variables of one srun process per host.
    let inside = format!("{variables} SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1");
    assert_eq!(world(&inside).launcher, Launcher::Mpich);
}

#[test]
fn settings() {
    let environment =
        read("PACELINE_INTERFACE=eth1 PACELINE_PORT_RANGE=20000-20100 PACELINE_INSECURE=1 PACELINE_TIMEOUT=1.5")
            .expect("good settings");
    let network =
        Network { interface: Some("eth1".into()), ports: Some(20000..=20100), insecure: true, ..Network::default() };
    assert_eq!(environment.network, network);
    assert_eq!(environment.timeout, Duration::from_millis(1500));
    assert_eq!(read("PACELINE_PORT_RANGE=7").expect("one port").network.ports, Some(7..=7));
    assert!(!read("PACELINE_INSECURE=0").expect("fine").network.insecure);
    let congestion_control = |text| read(text).expect("good settings").network.congestion_control;
    assert_eq!(congestion_control(""), CongestionControl::Suited);
    assert_eq!(congestion_control("PACELINE_TCP_CONGESTION=system"), CongestionControl::System);
    assert_eq!(Some(congestion_control("PACELINE_TCP_CONGESTION=dctcp")), CongestionControl::named("dctcp"));
    assert_eq!(environment.topology, Shape::Flat);
    let wired = |shape: &str| read(&format!("PACELINE_TOPOLOGY={shape}")).expect("a topology").topology;
    assert_eq!(["flat", "torus:4x2"].map(wired), [Shape::Flat, Shape::Torus { x: 4, y: 2 }]);
    assert_eq!(wired("bcube:2:3"), Shape::BCube { ports: 2, levels: 3 });
}

#[test]
fn secrets_are_read_and_not_shown() {
    let secret = "0123456789abcdef";
    let environment = read(&format!("PACELINE_SECRET={secret} PACELINE_ENCRYPT=1")).expect("a good secret");
    let network = &environment.network;
    assert!(network.encrypt && network.admits_others() && !network.insecure);
    assert_eq!(network.secret.as_ref().map(|secret| secret.reveal()), Some(secret));
    assert!(!format!("{environment:?}").contains(secret));
    assert_eq!(read("PACELINE_SECRET=").expect("none").network.secret, None);
    let message = error("PACELINE_SECRET=0123456789abcde");
    assert!(message.contains("has 15 bytes") && !message.contains("0123"), "{message}");
    let message = error(&format!("PACELINE_SECRET={secret} PACELINE_SECRET_FILE=/somewhere"));
    assert_eq!(message, "PACELINE_SECRET and PACELINE_SECRET_FILE are both set: unset one of them");
    let message = error("PACELINE_SECRET_FILE=/no/such/file");
    assert!(message.starts_with("the secret cannot be read from /no/such/file: No such file"), "{message}");
}

#[test]
fn nonsense_is_named() {
    let cases = [
        ("PACELINE_RANK=x PACELINE_WORLD_SIZE=2", "PACELINE_RANK=\"x\" is not a number in range"),
        ("PACELINE_RANK=-1 PACELINE_WORLD_SIZE=2", "PACELINE_RANK=\"-1\" is not a number in range"),
        ("PACELINE_RANK=1", "PACELINE_WORLD_SIZE is not set: it goes with PACELINE_RANK"),
        ("PACELINE_RANK=2 PACELINE_WORLD_SIZE=2", "PACELINE_RANK=\"2\" is not a rank below PACELINE_WORLD_SIZE=2"),
        ("PACELINE_RANK=0 PACELINE_WORLD_SIZE=0", "PACELINE_WORLD_SIZE=\"0\" is not a number of ranks from 1 to 65536"),
        ("RANK=0 WORLD_SIZE=70000", "WORLD_SIZE=\"70000\" is not a number of ranks from 1 to 65536"),
        (
            "PACELINE_RANK=0 PACELINE_WORLD_SIZE=2",
            "PACELINE_RENDEZVOUS is not set: PACELINE_RANK does not say where rank 0 is; \
             set it to host:port of rank 0, the same on every rank",
        ),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0", "MASTER_PORT=\"0\" is not a port"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT=\"70000\" is not a number in range"),
        ("PACELINE_TIMEOUT=0", "PACELINE_TIMEOUT=\"0\" is not a positive number of seconds"),
        ("PACELINE_TIMEOUT=NaN", "PACELINE_TIMEOUT=\"NaN\" is not a positive number of seconds"),
        ("PACELINE_TIMEOUT=1e300", "PACELINE_TIMEOUT=\"1e300\" is not a positive number of seconds"),
        ("PACELINE_PORT_RANGE=9-8", "PACELINE_PORT_RANGE=\"9-8\" is not a range of ports like 20000-20100"),
        (
            "PACELINE_TCP_CONGESTION=a/b",
            "PACELINE_TCP_CONGESTION=\"a/b\" is no name of a congestion control, like cubic, nor `system`",
        ),
        ("PACELINE_PORT_RANGE=0-8", "PACELINE_PORT_RANGE=\"0-8\" is not a range of ports like 20000-20100"),
        ("PACELINE_INSECURE=yes", "PACELINE_INSECURE=\"yes\" is neither 0 nor 1"),
        ("PACELINE_ENCRYPT=yes", "PACELINE_ENCRYPT=\"yes\" is neither 0 nor 1"),
        (
            "PACELINE_TOPOLOGY=ring",
            "PACELINE_TOPOLOGY=\"ring\" is no topology: give flat, torus:XxY or bcube:PORTS:LEVELS",
        ),
        (
            "PACELINE_TOPOLOGY=tree:8:2",
            "PACELINE_TOPOLOGY=\"tree:8:2\" changes no program: torus:XxY and bcube:PORTS:LEVELS do",
        ),
        (
            "PACELINE_TOPOLOGY=torus:0x2",
            "PACELINE_TOPOLOGY=\"torus:0x2\" makes no sense: the sides of a torus are at least 1, and its hosts \
             at most 1048576",
        ),
    ];
    for (variables, expected) in cases {
        assert_eq!(error(variables), expected);
    }
    let start = "PACELINE_RANK=0 PACELINE_WORLD_SIZE=2 PACELINE_RENDEZVOUS";
    for value in ["host", "host:", "host:0", "host:99999", ":4000", "[]:4000", "fd00::1:4000", "[fd00::1:4000"] {
        let message = error(&format!("{start}={value}"));
        assert!(message.starts_with(&format!("PACELINE_RENDEZVOUS=\"{value}\"")), "{message}");
    }
    assert!(error(&format!("{start}_FD=-1 {start}=a:1")).starts_with("PACELINE_RENDEZVOUS_FD=\"-1\""));
}
