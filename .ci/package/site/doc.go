// Command site makes a static site of README.md and every page that it leads to: site REPOSITORY DIRECTORY|FILE.zip. The site works
// from any web server, from a file system, and under a Content-Security-Policy that allows nothing inline and nothing from elsewhere.
// The same files give the same bytes.
package main
