"""What dashboards must be, and the tests that hold them to it.

=====================================================  ===========================================
generated, with one SDK for every Grafana              ``test_dashboards``: committed, sdk
one uid, tags, a version, one data source, not edited  ``test_dashboards``: identifies, data_source
variables: many, all, in order, of one metric          ``test_dashboards``: variables
each panel: title, question, unit, limits, legend      ``test_dashboards``: says_what_it_answers
rates over the interval of the graph                   ``test_dashboards``: look_back
each query is PromQL, and finds what it looks for      ``test_dashboards``: promql, find
what Grafana's linter asks: counters as gains, quotes  ``test_dashboards``: counter, quoted
panels and options that Grafana 10 to 13 all know      ``test_schemas``
links keep time, data source and selection             ``test_tables``, ``test_dashboards``: links
two clicks from the fleet to the one bad rank          ``test_job``, ``test_many_ranks``
the bottleneck, its GPUs and since when, unscrolled    ``test_dashboards``: scrolling, seen_whole
alerts on graphs, runbooks on panels                   ``test_dashboards``: runbooks, graphs
alerts lead to what they look at                       ``test_dashboards``: lead_to, leads_to
nothing is wrong only where no column has anything     ``test_health``, ``test_dashboards``: nothing
at most 40 panels and 60 queries, none on another      ``test_dashboards``: small_enough, overlap
figures that agree, in the pictures too                ``test_sums``, ``test_story``
colours that everybody can tell apart, beside words    ``test_colours``
each metric has a place or a reason                    ``test_shown``
=====================================================  ============================================
"""
