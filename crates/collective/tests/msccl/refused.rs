//! Every fault has its line and its reason.

use paceline_collective::msccl::{Fault, ReadError, STEPS_MAX, read};

use crate::files::{block, file};

const RING: &str = include_str!("ring_of_three.xml");

fn fault(text: &str) -> ReadError {
    read(text).expect_err(text)
}

/// The ring with one line changed.
fn with(line: usize, from: &str, to: &str) -> String {
    let mut lines: Vec<String> = RING.lines().map(str::to_owned).collect();
    assert!(lines[line - 1].contains(from), "{}", lines[line - 1]);
    lines[line - 1] = lines[line - 1].replacen(from, to, 1);
    lines.join("\n")
}

#[test]
fn wrong_attributes_and_what_is_said_about_them() {
    for (line, from, to, expected) in [
        (3, " name=\"ring of three\"", "", "line 3: <algo> has no name"),
        (3, "Simple", "Fast", "line 3: proto=\"Fast\" is not one of Simple, LL, LL128"),
        (
            3,
            "nchunksperloop=\"3\"",
            "nchunksperloop=\"0\"",
            "line 3: nchunksperloop=\"0\" is not a number from 1 to 16777216",
        ),
        (3, "ngpus=\"3\"", "ngpus=\"4\"", "line 3: there is no <gpu id=\"3\">"),
        (3, "ngpus=\"3\"", "ngpus=\"2\"", "line 5: recv=\"2\" is not a number from -1 to 1"),
        (
            3,
            "allreduce",
            "alltonext",
            "line 3: coll=\"alltonext\" is not a collective that can be verified: allreduce, reduce_scatter",
        ),
        (3, "inplace=\"1\"", "inplace=\"yes\"", "line 3: inplace=\"yes\" is not a number from 0 to 1"),
        (4, "<gpu", "<cpu", "line 4: <cpu> stands where <gpu> should"),
        (
            4,
            "o_chunks=\"3\"",
            "o_chunks=\"4\"",
            "line 4: o_chunks=\"4\" is not at most 3, as all-reduce and nchunksperloop say",
        ),
        (4, "s_chunks=\"0\"", "s_chunks=\"-1\"", "line 4: s_chunks=\"-1\" is not a number from 0 to 16777216"),
        (4, "s_chunks=\"0\"", "s_chunks=\"16777216\"", "line 3: too large: 16777234 chunks"),
        (5, "id=\"0\"", "id=\"1\"", "line 4: there is no <tb id=\"0\">"),
        (5, "send=\"1\"", "send=\"0\"", "line 5: send=\"0\" is not another gpu"),
        (5, "send=\"1\"", "send=\"-1\"", "line 6: the step needs a peer, but send of its thread block is -1"),
        (5, "recv=\"2\"", "recv=\"1\"", "line 7: the message from gpu 1 to gpu 0 on channel 0 has no sender"),
        (5, "chan=\"0\"", "chan=\"1\"", "line 5: chan=\"1\" is not a number from 0 to 0"),
        (6, "type=\"s\"", "type=\"x\"", "line 6: type=\"x\" is not one of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop"),
        (6, " cnt=\"1\"", "", "line 6: <step> has no cnt"),
        (6, "cnt=\"1\"", "cnt=\"0\"", "line 6: cnt=\"0\" is not a number from 1 to 16777216"),
        (6, "hasdep=\"0\"", "hasdep=\"2\"", "line 6: hasdep=\"2\" is not a number from 0 to 1"),
        (7, "s=\"1\"", "s=\"2\"", "line 7: s=\"2\" is not 1, its place in the thread block"),
        (7, "srcbuf=\"i\"", "srcbuf=\"q\"", "line 7: srcbuf=\"q\" is not one of i, o, s"),
        (7, "srcoff=\"2\"", "srcoff=\"3\"", "line 7: i[3..4] is out of range: there are 3 chunks"),
        (7, "dstoff=\"2\"", "dstoff=\"-1\"", "line 7: dstoff=\"-1\" is not a number from 0 to 16777216"),
        (
            7,
            "depid=\"-1\" deps=\"-1\"",
            "depid=\"0\" deps=\"9\"",
            "line 7: waits for step 9 of thread block 0, which is not there",
        ),
        (
            7,
            "depid=\"-1\" deps=\"-1\"",
            "depid=\"0\" deps=\"0\"",
            "line 7: waits for the step on line 6, whose hasdep is 0",
        ),
        (7, "depid=\"-1\"", "depid=\"0\"", "line 7: deps=\"-1\" is not a step of thread block 0"),
        (8, "cnt=\"1\"", "cnt=\"2\"", "line 8: receives 2 chunks, but line 25 sends 1"),
        (8, "/>", ">", "line 9: <step> stands where </step> should"),
        (10, "depid=\"-1\"", "hasdep=\"0\"", "line 10: no well-formed XML: "),
        (12, "</gpu>", "</gpu>text", "line 12: no well-formed XML: there is text between the elements"),
        (31, "</algo>", "</algo><algo/>", "line 31: <algo> stands where the end should"),
        (31, "</algo>", "", "line 31: no well-formed XML: it ends before all its elements do"),
    ] {
        let error = fault(&with(line, from, to)).to_string();
        assert!(error.starts_with(expected), "{from} to {to}: {error}, not {expected}");
    }
    // Out of place there are as many as the collective has, or none is said.
    let apart = with(3, "inplace=\"1\"", "inplace=\"0\"").replacen("o_chunks=\"3\"", "o_chunks=\"2\"", 1);
    let expected = "line 4: o_chunks=\"2\" is not 0 or 3, as all-reduce and nchunksperloop say";
    assert_eq!(fault(&apart).to_string(), expected);
}

#[test]
fn a_type_that_does_something_else_ends_with_something_else() {
    for (line, from, to) in [(8, "rrcs", "rcs"), (16, "rrcs", "rcs"), (28, "type=\"r\"", "type=\"rrc\"")] {
        let error = fault(&with(line, from, to));
        assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
        assert!((4..=29).contains(&error.line), "{error}");
    }
}

#[test]
fn a_step_left_out_leaves_its_message_alone() {
    let lines: Vec<_> = RING.lines().enumerate().filter(|&(index, _)| index != 9).map(|(_, line)| line).collect();
    let error = fault(&lines.join("\n")).to_string();
    assert_eq!(error, "line 26: the message from gpu 2 to gpu 0 on channel 0 has no receiver");
}

#[test]
fn who_waits_for_each_other_for_ever() {
    let error = fault(include_str!("deadlock.xml"));
    let Fault::Deadlock(mut lines) = error.fault.clone() else { panic!("{error}") };
    assert!(error.to_string().contains("waits, in the end, for itself, through lines"), "{error}");
    lines.sort();
    lines.dedup();
    assert_eq!(lines, [4, 5, 10, 11]);
    // On one rank, too.
    let text = file(
        "allreduce",
        1,
        false,
        1,
        |_| [1, 1, 0],
        |_| vec![block((-1, -1, 0), ["nop @1.0", "cpy i0 o0 !"]), block((-1, -1, 0), ["nop @0.1", "nop"])],
    );
    assert_eq!(fault(&text.replace("hasdep=\"0\"", "hasdep=\"1\"")).line, 4);
}

#[test]
fn what_is_left_to_chance() {
    let text = file(
        "allreduce",
        2,
        false,
        1,
        |_| [2, 2, 0],
        |_| vec![block((-1, -1, 0), ["cpy i0 o0 x2"]), block((-1, -1, 0), ["cpy i1 o1"])],
    );
    let error = fault(&text).to_string();
    assert!(error == "line 7: races with line 4 for o[1]" || error == "line 4: races with line 7 for o[1]", "{error}");
}

#[test]
fn two_thread_blocks_on_one_connection_and_two_of_one_name() {
    let text = file(
        "broadcast",
        2,
        false,
        2,
        |rank| [2 * u32::from(rank == 0), 2, 0],
        |rank| match rank {
            0 => vec![block((1, -1, 0), ["cpy i0 o0 x2", "s i0"]), block((1, -1, 0), ["s i1"])],
            _ => vec![block((-1, 0, 0), ["r o0"]), block((-1, 0, 0), ["r o1"])],
        },
    );
    assert_eq!(fault(&text).to_string(), "line 7: send=\"1\" on channel 0 already is the thread block's on line 3");
    let twice = text.replacen("<tb id=\"1\"", "<tb id=\"0\"", 1);
    assert_eq!(fault(&twice).to_string(), "line 7: <tb id=\"0\"> already stands on line 3");
}

#[test]
fn a_thread_block_has_256_steps_and_not_one_more() {
    let copies =
        |count| file("allreduce", 1, false, 1, |_| [1, 1, 0], |_| vec![block((-1, -1, 0), vec!["cpy i0 o0"; count])]);
    assert_eq!(read(&copies(STEPS_MAX)).unwrap().ranks[0].steps.len(), STEPS_MAX);
    assert_eq!(fault(&copies(STEPS_MAX + 1)).to_string(), "line 260: a thread block has at most 256 steps");
}

#[test]
fn more_steps_than_the_verifier_has_room_for() {
    let blocks = || (0..129).map(|_| block((-1, -1, 0), vec!["cpy i0 o0"; STEPS_MAX])).collect();
    let text = file("allreduce", 1, false, 1, |_| [1, 1, 0], |_| blocks());
    assert_eq!(fault(&text).to_string(), "line 2: too large: 33024 steps on one gpu, more than 32768");
}

#[test]
fn what_is_read_before_it_is_there_and_parts_that_do_not_match() {
    let copies = |steps: &[&str]| {
        let text = file("allreduce", 2, false, 1, |_| [2, 2, 2], |_| vec![block((-1, -1, 0), steps)]);
        fault(&text).to_string()
    };
    assert_eq!(copies(&["cpy s1 o0"]), "line 4: reads s[1], which nothing has written");
    assert_eq!(copies(&["cpy i1 s0", "re s0 i0"]), "line 5: combines part 0 of a block with part 1");
    assert!(copies(&["cpy i1 o0", "cpy i0 o1"]).contains("nobody writes it"), "part 1 is in the place of part 0");
}

#[test]
fn nothing_but_elements() {
    for (text, expected) in [
        ("", "line 1: no well-formed XML: there is no element"),
        ("\n<!DOCTYPE algo [<!ENTITY a \"b\">]>\n<algo/>", "line 2: no well-formed XML: document types are not taken"),
        ("<tb/>", "line 1: <tb> stands where <algo> should"),
        ("<algo name=\"&more;\"/>", "line 1: no well-formed XML: "),
    ] {
        let error = fault(text).to_string();
        assert!(error.starts_with(expected), "{error}, not {expected}");
    }
    fault(&"<algo>".repeat(1 << 20));
    let many: String = (0..1 << 18).map(|number| format!(" a{number}=\"\"")).collect();
    fault(&format!("<algo{many}/>"));
    fault(&with(6, "/>", &format!(">{}", "<step>".repeat(1 << 20))));
}
