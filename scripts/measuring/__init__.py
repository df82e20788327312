"""What the benchmarks and audits share: timing in turns, bars, loads on the processor, the parts of the audit."""
