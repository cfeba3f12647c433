//! Each operation against its definition, and its gradient against finite differences.

use candle_core::{Device, Result, Tensor, Var};

use super::*;
use crate::random::Random;

/// A variable of `shape`, uniform in ±1.
fn variable(random: &mut Random, shape: &[usize]) -> Var {
    let values = (0..shape.iter().product()).map(|_| random.symmetric(1.0)).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    with_values(tensor, <[f32]>::to_vec).unwrap()
}

/// Differentiates a weighted sum of the operation's results by every element of every argument.
fn agrees_with_differences(arguments: &[Var], operation: impl Fn(&[Tensor]) -> Result<Tensor>) {
    let tensors = |arguments: &[Var]| arguments.iter().map(|argument| argument.as_tensor().clone()).collect::<Vec<_>>();
    let result = operation(&tensors(arguments)).unwrap();
    // Different weights, so that gradients which only add up are noticed.
    let weights: Vec<f32> = (0..result.elem_count()).map(|i| (0.7 * i as f32 + 0.3).sin()).collect();
    let weights = Tensor::from_vec(weights, result.shape(), &Device::Cpu).unwrap();
    let gradients = (result * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    let sum = || {
        let result = operation(&tensors(arguments)).unwrap();
        values(&result).iter().zip(values(&weights)).map(|(a, b)| f64::from(a * b)).sum::<f64>()
    };
    for (number, argument) in arguments.iter().enumerate() {
        let gradient = values(gradients.get(argument).expect("a gradient"));
        let start = values(argument);
        let scale = gradient.iter().fold(1f32, |scale, value| scale.max(value.abs()));
        for element in 0..start.len() {
            let sum_at = |shift: f32| {
                let mut shifted = start.clone();
                shifted[element] += shift;
                argument.set(&Tensor::from_vec(shifted, argument.shape(), &Device::Cpu).unwrap()).unwrap();
                sum()
            };
            let slope = (sum_at(2e-3) - sum_at(-2e-3)) / 4e-3;
            sum_at(0.0);
            let difference = (slope - f64::from(gradient[element])).abs();
            let found = gradient[element];
            assert!(difference < 5e-3 * f64::from(scale), "argument {number}, {element}: {found}, not {slope}");
        }
    }
}

#[test]
fn a_convolution_is_candles_and_its_gradient_is_right() {
    let random = &mut Random::new(1, 0);
    for (samples, [inputs, outputs], [height, width], kernel, stride, padding) in [
        (1, [1, 1], [3, 3], 3, 1, 0),
        (2, [2, 3], [5, 4], 3, 1, 1),
        (3, [2, 2], [6, 5], 3, 2, 1),
        (2, [3, 2], [4, 6], 1, 1, 0),
        (2, [2, 4], [5, 5], 1, 2, 0),
        (1, [2, 2], [9, 8], 7, 2, 3),
        // The padding is wider than the image.
        (1, [1, 2], [2, 2], 5, 1, 2),
        // A last pixel that no window reaches.
        (1, [1, 1], [4, 4], 3, 3, 0),
    ] {
        let arguments =
            [variable(random, &[samples, inputs, height, width]), variable(random, &[outputs, inputs, kernel, kernel])];
        let ours = values(&convolve(&arguments[0], &arguments[1], stride, padding).unwrap());
        let theirs = values(&arguments[0].conv2d(&arguments[1], padding, stride, 1, 1).unwrap());
        assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5) && ours.len() == theirs.len());
        agrees_with_differences(&arguments, |arguments| convolve(&arguments[0], &arguments[1], stride, padding));
    }
}

/// Enough to be unfolded in several groups, the last of them smaller.
#[test]
fn a_convolution_in_groups_is_the_same() {
    let random = &mut Random::new(2, 0);
    let (images, weight) = (variable(random, &[11, 8, 40, 44]), variable(random, &[4, 8, 3, 3]));
    let ours = convolve(&images, &weight, 1, 1).unwrap();
    let theirs = images.conv2d(&weight, 1, 1, 1, 1).unwrap();
    let close = |ours: &Tensor, theirs: &Tensor, tolerance: f32| {
        values(ours).iter().zip(values(theirs)).all(|(a, b)| (a - b).abs() < tolerance)
    };
    assert!(close(&ours, &theirs, 1e-4));
    let gradients = |result: &Tensor| result.sqr().unwrap().mean_all().unwrap().backward().unwrap();
    let (ours, theirs) = (gradients(&ours), gradients(&theirs));
    for variable in [&images, &weight] {
        assert!(close(ours.get(variable).unwrap(), theirs.get(variable).unwrap(), 1e-4));
    }
}

#[test]
fn a_maximum_gives_its_gradient_to_the_largest_pixel() {
    let random = &mut Random::new(3, 0);
    for ([height, width], window, stride, padding) in [([5, 6], 3, 2, 1), ([4, 4], 2, 2, 0), ([7, 5], 3, 1, 0)] {
        // Far enough from each other that no difference changes which is the largest.
        let order = random.permutation(4 * height * width);
        let values = order.into_iter().map(|place| place as f32 / 50.0).collect();
        let images = [Var::from_vec(values, (2, 2, height, width), &Device::Cpu).unwrap()];
        agrees_with_differences(&images, |arguments| max_pool(&arguments[0], window, stride, padding));
    }
    // 3 × 3, every 2, padded by 1, of 4 × 4: the windows overlap in the middle, where the largest is.
    let mut pixels = [0.0f32; 16];
    (pixels[5], pixels[15]) = (2.0, 1.0);
    let images = Var::from_slice(&pixels, (1, 1, 4, 4), &Device::Cpu).unwrap();
    let result = max_pool(&images, 3, 2, 1).unwrap();
    assert_eq!(values(&result), [2.0, 2.0, 2.0, 2.0]);
    let gradients = result.sum_all().unwrap().backward().unwrap();
    let mut expected = [0.0; 16];
    expected[5] = 4.0;
    assert_eq!(values(gradients.get(&images).unwrap()), expected);
    // Of equal pixels, the first; NaN is the largest.
    let same = Var::from_slice(&[1.0f32, 1.0, f32::NAN, 0.0], (1, 1, 1, 4), &Device::Cpu).unwrap();
    assert!(max_pool(&same, 1, 1, 0).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()[2].is_nan());
    let same = Var::from_slice(&[1.0f32; 4], (1, 1, 2, 2), &Device::Cpu).unwrap();
    let gradients = max_pool(&same, 2, 2, 0).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(values(gradients.get(&same).unwrap()), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_softmax_gives_shares() {
    let random = &mut Random::new(4, 0);
    agrees_with_differences(&[variable(random, &[3, 2, 5])], |arguments| softmax(&arguments[0]));
    let large = Tensor::new(&[[1000.0f32, 1000.0, f32::NEG_INFINITY]], &Device::Cpu).unwrap();
    assert_eq!(values(&softmax(&large).unwrap()), [0.5, 0.5, 0.0]);
}

#[test]
fn a_cross_entropy_is_the_logarithm_of_the_share() {
    let random = &mut Random::new(5, 0);
    let logits = [variable(random, &[4, 3])];
    let targets = [2, 0, 1, 1];
    let losses = values(&cross_entropy(&logits[0], &targets).unwrap());
    for (row, (shares, target)) in values(&softmax(&logits[0]).unwrap()).chunks(3).zip(targets).enumerate() {
        assert!((losses[row] + shares[target as usize].ln()).abs() < 1e-6);
    }
    agrees_with_differences(&logits, |arguments| cross_entropy(&arguments[0], &targets));
    let error = |targets: &[u32]| cross_entropy(&logits[0], targets).unwrap_err().to_string();
    assert!(error(&[0, 1, 2]).contains("4 times for 3 targets"));
    assert!(error(&[0, 1, 2, 3]).contains("class 3, the model 3 classes"));
}

#[test]
fn a_normalised_channel_has_mean_and_deviation_of_its_parameters() {
    let random = &mut Random::new(6, 0);
    let arguments = [variable(random, &[3, 2, 2, 3]), variable(random, &[2]), variable(random, &[2])];
    let normalise = |arguments: &[Tensor]| {
        let statistics = ChannelStatistics::of(&arguments[0])?;
        batch_norm(&arguments[0], &arguments[1], &arguments[2], statistics, 1e-5)
    };
    let result = normalise(&arguments.each_ref().map(|argument| argument.as_tensor().clone())).unwrap();
    let statistics = ChannelStatistics::of(&result).unwrap();
    let (weight, bias) = (values(&arguments[1]), values(&arguments[2]));
    for channel in 0..2 {
        assert!((statistics.mean[channel] - bias[channel]).abs() < 1e-5);
        assert!((statistics.variance[channel].sqrt() - weight[channel].abs()).abs() < 1e-3);
    }
    assert_eq!(statistics.count, 18);
    agrees_with_differences(&arguments, normalise);
}

#[test]
fn a_normalised_row_has_mean_and_deviation_of_its_parameters() {
    let random = &mut Random::new(7, 0);
    let arguments = [variable(random, &[2, 3, 4]), variable(random, &[4]), variable(random, &[4])];
    agrees_with_differences(&arguments, |arguments| layer_norm(&arguments[0], &arguments[1], &arguments[2], 1e-5));
    let row = Tensor::new(&[[1.0f32, 3.0]], &Device::Cpu).unwrap();
    let (weight, bias) =
        (Tensor::new(&[2.0f32, 2.0], &Device::Cpu).unwrap(), Tensor::new(&[0.5f32, 0.5], &Device::Cpu).unwrap());
    assert_eq!(values(&layer_norm(&row, &weight, &bias, 0.0).unwrap()), [-1.5, 2.5]);
}
