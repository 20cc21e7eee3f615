"""Several brokers on one shared engine: who is alive, who owns which store, a broker for each that is ours."""
