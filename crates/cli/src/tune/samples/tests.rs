use super::*;

/// A call of two ranks, which take so long.
fn line(round: u64, sequence: u64, rank: u32, longest_ns: i64) -> String {
    format!(
        "{{\"schema\": 1, \"round\": {round}, \"communicator\": 7, \"instance\": 1, \"sequence\": {sequence}, \
         \"bytes\": 4096, \"longest_ns\": {longest_ns}, \"span_ns\": 9, \"policy\": 0, \"rank\": {rank}, \
         \"ranks\": 2, \"hosts\": 1, \"function\": \"AllReduce\", \"algorithm\": \"Ring\", \
         \"protocol\": \"LL\", \"channels\": 2, \"threads\": 64}}"
    )
}

fn recording(files: &[&[String]]) -> Result<Recording, String> {
    let mut recording = Recording::default();
    for (number, lines) in files.iter().enumerate() {
        let path = PathBuf::from(format!("rank{number}.jsonl"));
        recording.add(&path, (lines.join("\n") + "\n").as_bytes()).map_err(|failure| failure.in_one_line())?;
    }
    Ok(recording)
}

fn rounds(files: &[&[String]]) -> Result<(Vec<Round>, LeftOut), String> {
    recording(files)?.rounds().map_err(|failure| failure.in_one_line())
}

/// By round, what its calls took.
fn ns(rounds: &[Round]) -> Vec<Vec<f64>> {
    rounds.iter().map(|round| round.calls.iter().map(|call| (call.seconds * 1e9).round()).collect()).collect()
}

#[test]
fn a_call_takes_what_the_last_rank_takes() {
    let first = [line(1, 4, 0, 50), line(1, 5, 0, 900), line(1, 6, 0, 300), line(2, 7, 0, 100)];
    let second = [line(1, 4, 1, 50), line(1, 5, 1, 200), line(1, 6, 1, 800), String::new(), line(2, 7, 1, 400)];
    let (found, left_out) = rounds(&[&first, &second]).expect("samples");
    assert_eq!((ns(&found), left_out), (vec![vec![200.0, 300.0], vec![100.0]], LeftOut::default()));
    let Measured { function, bytes, ranks, hosts, way, channels, .. } = found[0].calls[0];
    assert_eq!((function, bytes, ranks, hosts, channels), (Function::AllReduce, 4096, 2, 1, 2));
    assert_eq!(way, Some((Algorithm::Ring, Protocol::Ll)));
    // In whatever order files are given, it is the same job; another one is another.
    let job = |files: &[&[String]]| recording(files).expect("samples").job();
    assert_eq!(job(&[&first, &second]), job(&[&second[..2], &first[..2]]));
    assert_ne!(job(&[&first, &second]), job(&[&[line(1, 4, 0, 51)], &second]));
}

/// All ranks wait for the slowest one, and files of before say nothing of iterations.
#[test]
fn an_iteration_takes_what_the_slowest_rank_says() {
    let timed = |line: String, seconds: &str| line.replace('{', &format!("{{\"iteration_s\": {seconds}, "));
    let first = [timed(line(1, 4, 0, 50), "0.25"), line(1, 5, 0, 50), line(2, 6, 0, 50), line(3, 7, 0, 50)];
    let second =
        [line(1, 4, 1, 50), timed(line(1, 5, 1, 50), "0.5"), line(2, 6, 1, 50), timed(line(3, 7, 1, 50), "null")];
    let (found, _) = rounds(&[&first, &second]).expect("samples");
    assert_eq!(found.iter().map(|round| round.iteration_s).collect::<Vec<_>>(), [Some(0.5), None, None]);
}

#[test]
fn calls_have_the_labels_that_the_program_gives_them() {
    let labelled = |line: String, label: &str| line.replace('{', &format!("{{{label}, "));
    let tensor = "\"parallelism\": \"tensor\", \"pipelined\": false, \"fused\": false, \"ps\": true";
    let first =
        [labelled(line(1, 4, 0, 50), tensor), line(2, 5, 0, 50), labelled(line(3, 6, 0, 50), "\"fused\": false")];
    // It is for beliefs: the first file counts where others say something else.
    let second = [line(1, 4, 1, 50), line(2, 5, 1, 50), labelled(line(3, 6, 1, 50), tensor)];
    let (found, left_out) = rounds(&[&first, &second]).expect("samples");
    let labels: Vec<Label> = found.iter().map(|round| round.calls[0].label).collect();
    let of_one = Label { is_fused_call: false, ..Label::default() };
    let (parallelism, is_ps_deployment) = (Parallelism::Tensor, true);
    let of_tensors = Label { parallelism, is_pipelined_layer: false, is_ps_deployment, ..of_one };
    assert_eq!((labels, left_out), (vec![of_tensors, Label::default(), of_one], LeftOut::default()));
}

/// What NCCL's model says stands with the round that says it, so that more rounds change nothing about earlier ones.
#[test]
fn tables_of_costs_belong_to_their_round() {
    let costs = |line: String, bytes: u64, us: &str| {
        line.replace('{', &format!("{{\"costs_bytes\": {bytes}, \"costs_us\": {us}, "))
    };
    let table = |first: f64| Costs::new(4100, vec![vec![Some(first), None], vec![None, Some(20.5)]]).expect("a table");
    let first = [line(1, 4, 0, 50), costs(line(2, 5, 0, 50), 4100, "[[9, null], [null, 20.5]]")];
    let second = [line(1, 4, 1, 50), costs(line(2, 5, 1, 50), 4100, "[[7, null], [null, 20.5]]")];
    let (found, _) = rounds(&[&first, &second]).expect("samples");
    let asked = (Function::AllReduce, 12, 2, 1);
    assert!(found[0].costs.is_empty() && found[0].calls[0].asked() == asked);
    assert_eq!(found[1].costs, BTreeMap::from([(asked, table(9.0))]), "the first rank counts");
    for (line, reason) in [
        (costs(line(1, 4, 0, 50), 8192, "[[9]]"), "costs_bytes is 8192, which is another power of two than the call's"),
        (costs(line(1, 4, 0, 50), 4100, "[[9], [9, 9]]"), "rows of one length"),
        (costs(line(1, 4, 0, 50), 4100, "[[0]]"), "costs_us: a cost is 0"),
        (costs(line(1, 4, 0, 50), 4100, "[[null]]"), "costs_us: all costs are null"),
        (costs(line(1, 4, 0, 50), 4100, "null"), "costs_bytes and costs_us stand together"),
        (costs(line(1, 4, 0, 50), 4100, "[[\"9\"]]"), "this is no sample"),
    ] {
        assert!(
            rounds(&[&[line]]).is_err_and(|message| message.contains(reason) && message.contains(":1")),
            "{reason}"
        );
    }
}

#[test]
fn calls_that_were_not_seen_by_all_are_left_out() {
    // The first is none of them; one took no time that the clock could tell, two have the same number, as replays have, and one
    // was lost.
    let first = [line(1, 5, 0, 900), line(1, 6, 0, 0), line(1, 7, 0, 40), line(1, 7, 0, 50), line(1, 8, 0, 900)];
    let second = [line(1, 6, 1, 800), line(1, 7, 1, 60), line(1, 7, 1, 30)];
    let (found, left_out) = rounds(&[&first, &second]).expect("samples");
    assert_eq!((ns(&found), left_out), (vec![vec![40.0, 30.0]], LeftOut { calls: 2, ..LeftOut::default() }));
}

/// The ring of a rank was full, so that all of its samples of a round are lost: that round says less, and the next one what it says.
#[test]
fn a_rank_without_samples_of_a_round_is_left_out_and_named() {
    let first = [line(1, 5, 0, 50), line(2, 6, 0, 60), line(3, 7, 0, 70)];
    let lost = |line: String| line.replace("\"schema\": 1", "\"schema\": 1, \"lost\": 3");
    let second = [line(1, 5, 1, 90), lost(line(3, 7, 1, 20))];
    let (found, left_out) = rounds(&[&first, &second]).expect("samples");
    assert_eq!(ns(&found), [vec![50.0], vec![], vec![20.0]]);
    let absent = "rank0.jsonl:2: communicator 7 has 2 ranks, and in round 2 there is no sample of rank 1".to_owned();
    assert_eq!(left_out, LeftOut { of_absent: 1, absent: Some(absent), lost: 3, ..LeftOut::default() });
}

/// Whoever wrote was ended in the middle of a line.
#[test]
fn a_line_without_its_end_is_counted_and_no_error() {
    let (whole, cut) = (line(1, 5, 0, 50), line(1, 6, 0, 60));
    for cut_at in [1, 20, cut.len() - 1] {
        let mut recording = Recording::default();
        let text = format!("{whole}\n{}", &cut[..cut_at]);
        recording.add(Path::new("0.jsonl"), text.as_bytes()).expect("the first line");
        recording
            .add(Path::new("1.jsonl"), line(1, 5, 1, 40).as_bytes())
            .expect("all of it, but for the end of the line");
        let (found, left_out) = recording.rounds().expect("samples");
        assert_eq!((ns(&found), left_out), (vec![vec![40.0]], LeftOut { cut_lines: 1, ..LeftOut::default() }));
    }
}

/// Twelve ranks in three communicators of four with the same number; the file of rank 10 stands before that of rank 2.
#[test]
fn communicators_that_share_a_number_are_told_apart_by_rank() {
    let mut names: Vec<u32> = (0..12).collect();
    names.sort_by_key(u32::to_string);
    let mut recording = Recording::default();
    for rank in names {
        let of = |line: String, ranks: u32| line.replace("\"ranks\": 2", &format!("\"ranks\": {ranks}"));
        let part = of(line(1, 5, rank % 4, 100 * (1 + i64::from(rank / 4))), 4);
        let text = format!("{part}\n{}\n", of(line(1, 6, rank, 7), 12));
        recording.add(Path::new("samples.jsonl"), text.as_bytes()).expect("samples");
    }
    let (found, left_out) = recording.rounds().expect("samples");
    assert_eq!((ns(&found), left_out), (vec![vec![200.0, 300.0, 7.0]], LeftOut::default()), "each with its own");
}

#[test]
fn the_line_of_the_documentation_is_a_sample_and_names_are_those_of_the_module() {
    let page = include_str!("../../../../../docs/json.md");
    let example = page.lines().find(|line| line.starts_with("    {\"schema\": 1, \"round\"")).expect("an example");
    let mut recording = Recording::default();
    recording.add(Path::new("json.md"), example.trim().as_bytes()).expect("a sample");
    assert_eq!((recording.calls.len(), recording.largest()), (1, Some((16, 2))));
    let module = include_str!("../../../../nccl-plugin/python/paceline_nccl.py");
    let listed = |name: &str| -> Vec<&str> {
        let line = module.lines().find_map(|line| line.strip_prefix(name)).expect("a list of names");
        line.split('"').skip(1).step_by(2).collect()
    };
    assert_eq!(listed("_FUNCTIONS = "), Function::ALL.iter().map(|it| it.name()).collect::<Vec<_>>());
    assert_eq!(listed("_ALGORITHMS = "), Algorithm::ALL.iter().map(|it| it.name()).collect::<Vec<_>>());
    assert_eq!(listed("_PROTOCOLS = "), Protocol::ALL.iter().map(|it| it.name()).collect::<Vec<_>>());
    assert_eq!(listed("_PARALLELISMS = "), Parallelism::ALL.iter().map(|it| it.name()).collect::<Vec<_>>());
}

#[test]
fn what_is_no_sample_is_said_with_file_and_line() {
    let good = [line(1, 5, 0, 900), line(1, 5, 1, 900)];
    let with = |wrong: String| rounds(&[&good, &[line(1, 6, 0, 900), wrong]]).expect_err("it is no sample");
    let changed = |from: &str, to: &str| with(line(1, 7, 0, 900).replace(from, to));
    for (message, words) in [
        (with("# no JSON".to_owned()), "this is no sample: expected value (column 1)"),
        (with("{\"schema\": 1}".to_owned()), "this is no sample: missing field `round`"),
        (changed("\"schema\": 1", "\"schema\": 9"), "it has schema 9"),
        (changed("\"round\": 1", "\"round\": 0"), "rounds count from 1 on"),
        (changed("AllReduce", "AllToAll"), "`AllToAll` is no function of NCCL; known: Broadcast"),
        (changed("Ring", "Star"), "`Star` is no algorithm of NCCL"),
        (changed("\"longest_ns\": 900", "\"longest_ns\": -5"), "longest_ns is -5"),
        (changed("\"rank\": 0", "\"rank\": 2"), "rank is 2, and the communicator has 2"),
        (changed("\"rank\": 0", "\"iteration_s\": 0, \"rank\": 0"), "iteration_s is 0: every iteration takes some"),
        (changed("\"rank\": 0", "\"parallelism\": \"all\", \"rank\": 0"), "this is no sample: unknown variant `all`"),
        (changed("\"rank\": 0", "\"ps\": 1, \"rank\": 0"), "this is no sample: invalid type"),
        (changed("\"hosts\": 1", "\"hosts\": 3"), "hosts is 3"),
        (changed("\"bytes\": 4096", "\"bytes\": -1"), "this is no sample: invalid value"),
        (
            changed("\"policy\": 0", "\"policy\": 18446744073709551615"),
            "policy is 18446744073709551615: versions go up",
        ),
        (changed("\"policy\": 0", "\"policy\": 9223372036854775807"), "policy is 9223372036854775807"),
        (changed("\"policy\": 0", "\"policy\": 4"), "the policy was 4 here and 0 in rank0.jsonl:1"),
    ] {
        assert!(message.starts_with("rank1.jsonl:2: ") && message.contains(words), "{message}\nhas no {words}");
    }
    let backwards = rounds(&[&[line(2, 5, 0, 900), line(1, 6, 0, 900)]]).expect_err("another job");
    assert!(backwards.starts_with("rank0.jsonl:2: round 1 stands after round 2"), "{backwards}");
    let alone = rounds(&[&[line(1, 5, 0, 900)]]).expect_err("rank 1 is missing");
    assert!(alone.starts_with("rank0.jsonl:1: communicator 7 has 2 ranks") && alone.contains("rank 1"), "{alone}");
    let apart = rounds(&[&[line(1, 5, 0, 900), line(1, 6, 1, 900)]]).expect_err("each has another call");
    assert!(apart.contains("no call of which all ranks have a sample"), "{apart}");
    assert!(rounds(&[&[]]).is_err_and(|message| message.contains("no samples")));
    let within = Communicator { ranks: 1, ..Communicator::of_graph(paceline_tune::nccl::Graph::default()) };
    for (is_said, words) in [(true, "--ranks and --hosts say 1 on 1"), (false, "is no part of one of 1 on 1")] {
        let beyond = recording(&[&good]).expect("samples").check_within(&within, is_said).expect_err("it is larger");
        let message = beyond.in_one_line();
        assert!(message.starts_with("rank0.jsonl:1: the communicator has 2 ranks"), "{message}");
        assert!(message.contains(words) && is_said != message.contains("give --ranks and --hosts"), "{message}");
    }
    let missing = Recording::read(&[PathBuf::from("/nowhere/samples.jsonl")]).expect_err("no such file");
    assert!(missing.in_one_line().contains("/nowhere/samples.jsonl"), "{missing:?}");
}
