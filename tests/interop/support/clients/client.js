// Downloads and uploads over two TLS connections that share a cache of sessions.
//
// client.js PORT AUTHORITY NAME VERSION GROUP LENGTH prints a line for each connection: version,
// whether the session was resumed, the hash of what it downloaded, and the origin's report about
// the upload of the same bytes.
const https = require("https");
const [port, authority, name, version, group, length] = process.argv.slice(2);
const protocol = `TLSv${version}`;
const options = {
    port, host: "127.0.0.1", servername: name, minVersion: protocol, maxVersion: protocol,
    ca: require("fs").readFileSync(authority), headers: { host: `${name}:${port}` },
    // For TLS 1.2 the curve of the certificate has to be among the groups.
    ecdhCurve: version === "1.2" && group !== "P-256" ? `${group}:P-256` : group,
};

function request(agent, method, path, body) {
    return new Promise((resolve, reject) => {
        const sent = https.request({ ...options, agent, method, path }, (response) => {
            const pieces = [], { socket } = response;
            const session = `${socket.getProtocol()} ${socket.isSessionReused()}`;
            response.on("data", (piece) => pieces.push(piece));
            response.on("end", () => resolve([Buffer.concat(pieces), session]));
            response.on("error", reject);
        });
        sent.on("error", reject);
        sent.end(body);
    });
}

(async () => {
    // A connection of the agent ends with its response, and its session stays.
    const agent = new https.Agent({ keepAlive: false });
    for (let connection = 0; connection < 2; connection++) {
        const [body, session] = await request(agent, "GET", `/bytes/${length}`);
        const [report] = await request(agent, "POST", "/upload", body);
        const hash = require("crypto").createHash("sha256").update(body).digest("hex");
        console.log(session, hash, report.toString());
    }
})().catch((error) => { console.error(error); process.exit(1); });
