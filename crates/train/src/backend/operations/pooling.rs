//! Maximum over windows that may overlap. The backward of candle's `max_pool2d` refuses those, and divides the gradient
//! by the window's size where they do not overlap.

use candle_core::{CpuStorage, CustomOp1, Device, Error, Layout, Result, Shape, Tensor};

use super::{slice, with_values};

/// The maximum of each `window` × `window` pixels, every `stride` pixels, of `images`, `[samples, channels, height,
/// width]`. `padding` pixels that are less than everything stand around the image. The gradient goes to the first of the
/// largest pixels, row by row, as in PyTorch.
pub(crate) fn max_pool(images: &Tensor, window: usize, stride: usize, padding: usize) -> Result<Tensor> {
    images.contiguous()?.apply_op1(MaxPool { window, stride, padding })
}

struct MaxPool {
    window: usize,
    stride: usize,
    padding: usize,
}

impl MaxPool {
    fn out(&self, size: usize) -> Result<usize> {
        let MaxPool { window, stride, padding } = *self;
        // A window that lies in the padding altogether has no maximum.
        if size + 2 * padding < window || padding >= window || stride == 0 {
            return Err(Error::Msg(format!(
                "windows of {window}, every {stride}, padded by {padding}, of {size} pixels"
            )));
        }
        Ok((size + 2 * padding - window) / stride + 1)
    }

    /// Calls `chosen(result, pixel)` with the numbers of each result and of the pixel that it is.
    fn choose(&self, images: &[f32], shape: &Shape, mut chosen: impl FnMut(usize, usize)) -> Result<()> {
        let (samples, channels, height, width) = shape.dims4()?;
        let (out_height, out_width) = (self.out(height)?, self.out(width)?);
        let reach = |out: usize, size: usize| {
            let start = out * self.stride;
            start.saturating_sub(self.padding)..(start + self.window - self.padding).min(size)
        };
        for plane in 0..samples * channels {
            for (y, x) in (0..out_height).flat_map(|y| (0..out_width).map(move |x| (y, x))) {
                let rows = reach(y, height).map(|row| (plane * height + row) * width);
                let mut pixels = rows.flat_map(|row| reach(x, width).map(move |column| row + column));
                let first = pixels.next().unwrap_or_default();
                // NaN is larger than everything.
                let larger = |best: usize, pixel: usize| images[pixel] > images[best] || images[pixel].is_nan();
                let best = pixels.fold(first, |best, pixel| if larger(best, pixel) { pixel } else { best });
                chosen((plane * out_height + y) * out_width + x, best);
            }
        }
        Ok(())
    }
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool"
    }

    fn cpu_fwd(&self, images: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let images = slice(images, layout)?;
        let (samples, channels, height, width) = layout.shape().dims4()?;
        let shape = Shape::from((samples, channels, self.out(height)?, self.out(width)?));
        let mut result = vec![0.0; shape.elem_count()];
        self.choose(images, layout.shape(), |position, pixel| result[position] = images[pixel])?;
        Ok((CpuStorage::F32(result), shape))
    }

    fn bwd(&self, images: &Tensor, _result: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let mut of_images = vec![0.0; images.elem_count()];
        with_values(gradient, |gradient| {
            with_values(images, |values| {
                self.choose(values, images.shape(), |position, pixel| of_images[pixel] += gradient[position])
            })
        })???;
        Tensor::from_vec(of_images, images.shape(), &Device::Cpu).map(Some)
    }
}
