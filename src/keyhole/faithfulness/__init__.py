"""What carries an answer? Passes with a mask on every edge: effects, shares, circuits that suffice."""
