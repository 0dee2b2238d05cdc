// Command demo is the web server and the client of demo.sh, which shows the
// appliance at work on three backends in network namespaces.
//
//	demo serve -name backend-1 -listen 10.1.2.11:8080
//	demo ask -n 300 -expect backend-1,backend-2,backend-3 http://10.96.0.10/
//
// It exits with 1 when a request fails or when others answer than were expected,
// so that the demo cannot show what is not true. It must not import any package
// of this module: it plays the part of programs of others.
package main
