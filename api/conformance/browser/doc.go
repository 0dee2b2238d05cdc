// Package browser tries the dashboard with Chromium, headless: what a user sees, and what a page of another origin gets.
//
// The module is no part of the product and must not import the product's packages. It holds tests alone. Chromium is
// the distribution's; axe-core, which looks for what keeps people from using a page, is downloaded by npm at the version that is
// pinned here.
//
//	go test -count=1 .                                  # as root, in a network namespace of its own
//	make screenshots                                    # pictures of each page in bin/screenshots, to be looked at
package browser
